"""Requests that are kept, read again by their id, and ended: whoever reads them, and wherever (rule 15)."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.gateway.core.origin import derived_id
from services.gateway.core.readiness import PARTS
from shared import subjects
from shared.messages.codec import decoder
from shared.messages.control import GatewayHeartbeat
from shared.messages.pipeline import PROTOCOL_VERSION, GenerateRequest
from tests.e2e.event_stream import EventReader
from tests.gateway.conftest import Running, start_gateway, stop_gateway
from tests.gateway.stand_in import Script, StandIn, text_of
from tests.servers import NatsServer
from tests.waiting import until

RESUMABLE = {"X-Tokenbus-Resumable": "1"}
ASK: dict[str, Any] = {"model": "tiny", "prompt": "hello", "stream": True}
RID = "0123456789abcdef" * 2


class Reader(EventReader):
    """One that runs beside its test."""

    def __init__(self, running: Running, method: str, path: str, **request: Any) -> None:
        super().__init__()
        self.task = asyncio.create_task(self.read(running.http, method, path, **request))

    @classmethod
    def asking(cls, running: Running, headers: dict[str, str] | None = None, **fields: Any) -> "Reader":
        return cls(running, "POST", "/v1/completions", json={**ASK, **fields}, headers=headers)

    @classmethod
    def reading(cls, running: Running, request_id: str, last_id: str = "") -> "Reader":
        headers = {"Last-Event-ID": last_id} if last_id else {}
        return cls(running, "GET", f"/v1/requests/{request_id}/stream", headers=headers)

    @property
    def text(self) -> str:
        return self.texts.get(0, "")

    async def has(self, num_tokens: int) -> None:
        await until(lambda: self.text == text_of(0, num_tokens) or self.task.done(), f"{num_tokens} tokens")
        assert self.text == text_of(0, num_tokens), self.error

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def second(nats_server: NatsServer, stand_in: StandIn) -> AsyncIterator[Running]:
    """Another gateway of the same pipeline."""
    second = await start_gateway(nats_server.url, stand_in)
    yield second
    await stop_gateway(second)


def hold(running: Running, holds_at: int = 3, **script: Any) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=holds_at, **script)


async def test_gateways_tell_that_they_live(running: Running) -> None:
    decode = decoder(GatewayHeartbeat)
    heard: list[str] = []
    await running.stand_in.bus.subscribe(
        subjects.GATEWAY_HEARTBEAT, lambda _s, _r, data, _h: heard.append(decode(data).gateway)
    )
    await until(lambda: len(heard) >= 3)
    assert set(heard) == {running.host.name}


async def test_an_ordinary_request_is_its_gateways(running: Running) -> None:
    await running.complete()
    (request,) = running.stand_in.requests
    assert (request.owner, request.keep_s) == (running.host.name, 0)
    assert request.origin


async def test_a_kept_request_is_left_and_read_on_elsewhere(running: Running, second: Running) -> None:
    hold(running)
    first = Reader.asking(running, RESUMABLE)
    await first.has(3)
    (request,) = running.stand_in.requests
    assert (request.owner, request.keep_s) == (running.host.name, 60)
    assert running.stand_in.readers == [], "the request itself says who reads it"
    await first.leave()
    request_id = request.request_id or ""
    left = (request_id, running.host.name, False)
    await until(lambda: running.stand_in.readers == [left], "a record that it was left")

    again = Reader.reading(second, first.answer_id, first.last_id)
    joined = (request_id, second.host.name, True)
    await until(lambda: running.stand_in.readers == [left, joined], "a record that it is read")
    running.stand_in.release()
    await again.task
    assert again.is_whole and again.text == text_of(3, 6)
    assert (again.answer_id, again.created) == (first.answer_id, first.created)
    assert running.stand_in.ends == []
    assert second.value("tokenbus_requests_read_again_total") == 1


async def test_it_is_left_when_the_last_client_of_a_gateway_has_gone(running: Running) -> None:
    hold(running)
    readers = [Reader.asking(running, RESUMABLE)]
    await readers[0].has(3)
    request_id = readers[0].request_id
    readers += [Reader.reading(running, request_id) for _ in range(2)]
    for reader in readers:
        await reader.has(3)
    for reader in readers[:2]:
        await reader.leave()
    await until(lambda: len(running.gateway.endpoints.generations) == 1)
    await running.gateway.pipeline.bus.flush()
    assert running.stand_in.readers == []
    await readers[2].leave()
    await until(lambda: running.stand_in.readers == [(request_id, running.host.name, False)])
    back = Reader.reading(running, request_id)
    await until(lambda: running.stand_in.readers[1:] == [(request_id, running.host.name, True)])
    running.stand_in.release()
    await back.task
    assert back.text == text_of(0, 6)


async def test_readers_of_one_request_in_one_gateway_do_not_take_text_from_each_other(running: Running) -> None:
    hold(running)
    owner = Reader.asking(running)
    await owner.has(3)
    others = [Reader.reading(running, owner.request_id, last_id) for last_id in ("", "2", "")]
    await others[0].has(3)
    assert len({attach.inbox for attach in running.stand_in.attaches}) >= 3
    running.stand_in.release()
    await asyncio.gather(*(reader.task for reader in (owner, *others)))
    assert [reader.text for reader in (owner, *others)] == [
        text_of(0, 6),
        text_of(0, 6),
        text_of(2, 6),
        text_of(0, 6),
    ]
    assert all(reader.is_whole for reader in others)


async def test_row_47_only_the_owners_client_ends_an_ordinary_request(running: Running, second: Running) -> None:
    hold(running)
    owner = Reader.asking(running)
    await owner.has(3)
    other = Reader.reading(second, owner.request_id)
    await other.has(3)
    await other.leave()
    await until(lambda: not second.gateway.endpoints.generations)
    await second.gateway.pipeline.bus.flush()
    assert (running.stand_in.ends, running.stand_in.readers) == ([], [])
    await owner.leave()
    await until(lambda: running.stand_in.ends == [owner.request_id])


async def test_a_whole_answer_is_read_as_a_stream(running: Running) -> None:
    hold(running)
    asking = asyncio.create_task(running.complete(n=2))
    await until(lambda: running.stand_in.attaches)
    request_id = running.stand_in.requests[0].request_id or ""
    other = Reader.reading(running, f"cmpl-{request_id}")
    await other.has(3)
    running.stand_in.release()
    answer = (await asking).json()
    await other.task
    assert other.texts == {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert (other.answer_id, other.last_id) == (answer["id"], "6-6")


async def test_a_chat_goes_on_without_beginning_anew(running: Running) -> None:
    hold(running)
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2}
    asked["stream_options"] = {"include_usage": True}
    first = Reader(running, "POST", "/v1/chat/completions", json=asked, headers=RESUMABLE)
    await first.has(3)
    running.stand_in.release()
    await first.task
    url = f"/v1/requests/{first.answer_id}/stream"
    rest = (await running.http.get(url, headers={"Last-Event-ID": "4-0"})).text
    assert rest.count('"role":"assistant"') == 1, "only the choice that begins has a role event"
    assert '"object":"chat.completion.chunk"' in rest
    assert '"completion_tokens":12' in rest, "usage counts what the client had already"
    assert "id: 5-1\n" in rest and "id: 6-6\n" in rest and "id: 3-0\n" not in rest


async def test_several_prompts_are_read_as_one_answer(running: Running) -> None:
    hold(running)
    first = Reader.asking(running, RESUMABLE, prompt=["a", "b"], n=2, return_token_ids=True)
    await until(lambda: first.num_tokens == 12)
    await first.leave()
    running.stand_in.release()
    rest = first.continued()
    path = f"/v1/requests/{first.answer_id}/stream"
    await rest.read(running.http, "GET", path, headers={"Last-Event-ID": first.last_id})
    assert rest.token_ids == {choice: list(range(100, 106)) for choice in range(4)}
    whole = await running.http.get(path)
    assert whole.text.count('"prompt_token_ids":[7,8,9]') == 2
    assert (await running.http.get(f"/v1/requests/{derived_id(first.request_id, 1)}/stream")).status_code == 404


async def test_a_request_that_came_straight_over_nats(running: Running) -> None:
    running.stand_in.log(
        GenerateRequest(v=PROTOCOL_VERSION, model="tiny", prompt="x", request_id=RID, created_s=1000.0)
    )
    reader = Reader.reading(running, RID)
    await reader.task
    assert (reader.text, reader.answer_id, reader.created) == (text_of(0, 4), f"cmpl-{RID}", 1000)


@pytest.mark.parametrize("path_id", ["x", "cmpl-", RID[1:], RID.upper(), RID, f"chatcmpl-{RID}", "a%2Fb"])
async def test_ids_that_are_none(running: Running, path_id: str) -> None:
    answer = await running.http.get(f"/v1/requests/{path_id}/stream")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")


async def test_what_is_no_longer_kept(running: Running) -> None:
    running.stand_in.forgotten.add(RID)
    answer = await running.http.get(f"/v1/requests/{RID}/stream")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "request_forgotten")


@pytest.mark.parametrize("last_id", ["", "x", "1-2", "-1", "1,2", "3" * 11])
async def test_a_last_event_id_that_is_none(running: Running, last_id: str) -> None:
    await running.complete()
    request_id = running.stand_in.requests[0].request_id
    answer = await running.http.get(f"/v1/requests/{request_id}/stream", headers={"Last-Event-ID": last_id})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_methods_and_paths(running: Running) -> None:
    path = f"/v1/requests/{RID}/stream"
    assert (await running.http.get(f"/v1/requests/{RID}")).status_code == 404
    for method in ("HEAD", "POST", "PUT"):
        answer = await running.http.request(method, path)
        assert answer.status_code == 405
        assert "GET" in answer.headers["allow"]
    assert (await running.http.delete(path)).status_code == 404


async def test_delete_ends_it_for_everybody(running: Running) -> None:
    hold(running)
    reader = Reader.asking(running, RESUMABLE, prompt=["a", "b"])
    await until(lambda: reader.num_tokens == 0 and len(reader.texts) == 2)
    for path_id in (reader.answer_id, reader.request_id):
        answer = await running.http.delete(f"/v1/requests/{path_id}")
        assert answer.json() == {"id": reader.answer_id, "object": "request", "cancelled": True}
    ids = [reader.request_id, derived_id(reader.request_id, 1)]
    await until(lambda: running.stand_in.ends == ids * 2, "cancels, of which the log drops the second ones")
    unknown = await running.http.delete(f"/v1/requests/{RID}")
    assert (unknown.status_code, unknown.json()["cancelled"]) == (200, True)
    await until(lambda: running.stand_in.ends[4:] == [RID], "a cancel that waits for its request (rule 12)")
    assert (await running.http.delete("/v1/requests/nonsense")).status_code == 404


async def test_delete_waits_for_a_request_on_its_way(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is logged says that there is a second prompt."""
    monkeypatch.setattr("services.gateway.request_endpoints.CANCEL_WAIT_S", 5.0)
    await running.complete(prompt=["a", "b"])
    stand_in = running.stand_in
    requests = list(stand_in.logged.values())
    first, second = [request.request_id for request in requests]
    stand_in.logged.clear()
    deleting = asyncio.create_task(running.http.delete(f"/v1/requests/{first}"))
    await until(lambda: first in stand_in.waiting, "the question")
    for request in requests:
        stand_in.log(request)
    assert (await deleting).status_code == 200
    await until(lambda: stand_in.ends == [first, second], "both ends")


async def test_a_draining_gateway_leaves_kept_requests_and_says_so(running: Running) -> None:
    hold(running)
    kept, ordinary = Reader.asking(running, RESUMABLE), Reader.asking(running)
    for reader in (kept, ordinary):
        await reader.has(3)
    running.host.stopping.set()
    running.host.hurrying.set()
    await running.gateway.drain()
    await asyncio.gather(kept.task, ordinary.task)
    assert '"code": "draining"' in kept.error and "read on" in kept.error
    assert '"code": "draining"' in ordinary.error and "read on" not in ordinary.error
    assert running.stand_in.readers == [(kept.request_id, running.host.name, False)]
    assert running.stand_in.ends == [ordinary.request_id]


async def test_after_a_reconnection_it_says_again_what_it_reads(nats_server: NatsServer, running: Running) -> None:
    hold(running)
    kept, ordinary = Reader.asking(running, RESUMABLE), Reader.asking(running)
    for reader in (kept, ordinary):
        await reader.has(3)
    await asyncio.to_thread(nats_server.kill)
    await asyncio.to_thread(nats_server.restart)
    await until(lambda: (kept.request_id, running.host.name, True) in running.stand_in.readers)
    running.stand_in.release()
    await asyncio.gather(kept.task, ordinary.task)
    assert kept.text == ordinary.text == text_of(0, 6)
    assert {request_id for request_id, *_ in running.stand_in.readers} == {kept.request_id}


async def test_after_standing_still_it_says_again_what_it_reads(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and once more: the leader's record that it is gone may come late."""
    monkeypatch.setattr("services.gateway.presence.TELL_ONCE_MORE_S", 0.5)
    hold(running)
    kept = Reader.asking(running, RESUMABLE)
    await kept.has(3)
    running.gateway.pipeline.presence._beat_at -= 1.5
    await until(lambda: running.stand_in.readers == [(kept.request_id, running.host.name, True)] * 2)
    await kept.leave()


async def test_a_gateway_that_is_cut_off_sends_readers_elsewhere(running: Running, nats_server: NatsServer) -> None:
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        readiness = running.gateway.pipeline.readiness
        await until(lambda: len(readiness.missing(time.monotonic())) == len(PARTS), "silence of all parts")
        answer = await running.http.get(f"/v1/requests/{RID}/stream")
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_ready"
    assert answer.headers["retry-after"] == "1"
