"""What a client sees when something behind the gateway, or the client itself, goes wrong."""

import asyncio
import signal
import sys
import time
from typing import Any

import openai
import pytest

from deploy.node.nats_server import free_port
from shared.errors import unavailable
from shared.messages.pipeline import ErrorBody
from tests.gateway.conftest import Running, start_gateway, stop_gateway
from tests.gateway.raw_http import send_raw
from tests.gateway.raw_stream import Open
from tests.gateway.stand_in import Script, StandIn, text_of
from tests.gateway.test_completions import events_of
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until

ENGINE_ERROR = ErrorBody("The engine failed on this request.", "server_error", None, "engine_error")


# ---- row 13: 503 with Retry-After


@pytest.mark.parametrize("part", ["leader", "tokenizer", "detokenizer"])
async def test_row_13_a_part_is_missing(part: str, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.core.readiness.GRACE_S", 1.0)
    running.stand_in.beats.discard(part)
    await until(lambda: not running.host.check_health().ready, "not ready")
    assert (await running.http.get("/ready")).status_code == 503
    assert (await running.complete()).status_code == 200, "short outages are ridden out"
    await until(lambda: running.gateway.pipeline.readiness.refusal(time.monotonic()), "a refusal")
    check_unavailable(await running.complete(), "not_ready")


def check_unavailable(answer: Any, code: str) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("service_unavailable_error", code, None)


async def test_row_13_no_worker(running: Running) -> None:
    running.stand_in.num_workers = 0
    await until(lambda: running.gateway.pipeline.readiness.missing(time.monotonic()) == ["worker"])
    assert (await running.http.get("/health")).json()["missing"] == ["worker"]


async def test_row_13_log_full(running: Running) -> None:
    running.stand_in.is_log_full = True
    await until(lambda: running.gateway.pipeline.readiness.is_log_full)
    check_unavailable(await running.complete(), "log_full")


async def test_row_13_queue_full(running: Running) -> None:
    running.stand_in.script = Script(refusal=unavailable("The queue is full.", 7, "queue_full"))
    answer = await running.complete()
    check_unavailable(answer, "queue_full")
    assert answer.headers["retry-after"] == "7"


async def test_row_13_no_model(nats_server: NatsServer, stand_in: StandIn) -> None:
    stand_in.cards = []
    running = await start_gateway(nats_server.url, stand_in)
    assert (await running.complete()).status_code == 503
    assert (await running.http.get("/v1/models")).status_code == 503
    await stop_gateway(running)


async def test_no_tokenizer_at_all(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.reading.submission.NO_TOKENIZER_LIMIT_S", 0.3)
    await running.stand_in.deafen()
    answer = await running.complete()
    assert answer.status_code == 503
    assert running.stand_in.ends == [], "nobody can have taken it"


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_refused_request_is_cancelled_if_an_earlier_attempt_may_have_stored_it(
    is_stored: bool, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tokenizer stored it and died before it answered; the next one finds the queue full."""
    monkeypatch.setattr("shared.reading.submission.ATTEMPT_TIMEOUT_S", 0.2)
    running.stand_in.ignored_infers = int(is_stored)
    running.stand_in.script = Script(refusal=unavailable("The queue is full.", code="queue_full"))
    answer = await running.complete()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    refused = running.stand_in.requests[0].request_id
    if is_stored:
        await until(lambda: running.stand_in.ends == [refused])
    else:
        assert (await running.http.delete(f"/v1/requests/{'d' * 32}")).status_code == 200
        await until(lambda: running.stand_in.ends == ["d" * 32], "only the end that was asked for")


# ---- row 47: the client goes


@pytest.mark.parametrize("stream", [True, False])
async def test_row_47_client_gone(stream: bool, running: Running, open_stream: Open) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    streaming = await open_stream(stream=stream)
    await until(lambda: running.stand_in.attaches and running.stand_in.requests)
    await streaming.leave()
    request_id = running.stand_in.requests[0].request_id
    await until(lambda: running.stand_in.ends == [request_id], "the End record")
    await until(lambda: [detach.request_id for detach in running.stand_in.detaches] == [request_id], "the Detach")
    await until(lambda: running.value("tokenbus_client_disconnects_total") == 1)
    assert running.value("tokenbus_http_responses_total", status="499") == 1
    running.stand_in.release()
    assert (await running.complete()).status_code == 200


async def test_row_47_client_gone_before_acceptance(running: Running, open_stream: Open) -> None:
    running.stand_in.ignored_infers = 1000
    streaming = await open_stream()
    await until(lambda: running.stand_in.requests)
    await streaming.leave()
    await until(lambda: running.stand_in.ends == [running.stand_in.requests[0].request_id])


async def test_no_end_record_after_a_whole_answer(running: Running) -> None:
    for _ in range(3):
        assert (await running.complete()).status_code == 200
        assert (await running.complete(stream=True)).status_code == 200
    await running.gateway.pipeline.bus.flush()
    assert running.stand_in.ends == []
    assert running.gateway.pipeline.hub.attachments.num_streams == 0


# ---- rows 49 and 50: the engine fails, the deadline passes


async def test_row_49_engine_fails_in_mid_stream(running: Running, open_stream: Open) -> None:
    running.stand_in.script = Script(num_tokens=2, reason="error", error=ENGINE_ERROR)
    running.stand_in.script.holds_at = 1
    streaming = await open_stream()
    seen = await streaming.read_until(b" w0")
    running.stand_in.release()
    seen += await streaming.read_until(b"0\r\n\r\n")
    assert b"event: error\ndata: " in seen
    assert b'"code":"engine_error"' in seen
    assert b"[DONE]" not in seen


async def test_row_49_the_official_client_raises(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=2, reason="quarantined")
    async with running.openai() as client:
        with pytest.raises(openai.APIError):
            async for _ in await client.completions.create(model="tiny", prompt="hello", stream=True):
                running.stand_in.release()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("quarantined", 500), ("deadline", 504)])
async def test_failures_before_the_first_token(reason: Any, status: int, stream: bool, running: Running) -> None:
    running.stand_in.script = Script(num_tokens=0, reason=reason)
    answer = await running.complete(stream=stream)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_rule_13_a_rejection_decides_the_status(running: Running) -> None:
    error = ErrorBody("It can never fit.", "invalid_request_error", "prompt", "too_large_for_memory")
    running.stand_in.script = Script(num_tokens=0, reason="rejected", error=error)
    answer = await running.complete(stream=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_row_50_deadline_before_the_first_token(
    nats_server: NatsServer, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when nobody behind the gateway says so."""
    monkeypatch.setattr("services.gateway.generation.DEADLINE_GRACE_S", 0.1)
    running = await start_gateway(nats_server.url, stand_in, request_timeout_s=0.3)
    stand_in.script = Script(holds_at=0)
    answer = await running.complete()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    stand_in.script = Script(holds_at=2)
    assert "event: error" in (await running.complete(stream=True)).text
    await until(lambda: len(stand_in.ends) == 2)
    await stop_gateway(running)


async def test_one_of_several_prompts_is_refused(running: Running) -> None:
    running.stand_in.script = Script(refusal=unavailable("The queue is full."))
    assert (await running.complete(prompt=["a", "b"])).status_code == 503


# ---- rules 12, 14 and 15: retries, gaps, silence, new incarnations, slow readers


async def test_rule_12_retries_are_the_same_bytes(running: Running) -> None:
    running.stand_in.ignored_infers = 1
    assert (await running.complete()).json()["choices"][0]["text"] == text_of(0, 4)
    first, second = running.stand_in.requests
    assert first == second


async def test_accepted_into_another_shard(running: Running) -> None:
    """The early attach was sent to the wrong place: it is taken back, and made where the request is."""
    running.stand_in.script = Script(shard="s1")
    assert (await running.complete()).json()["choices"][0]["text"] == text_of(0, 4)
    assert len(running.stand_in.detaches) == 1
    assert len(running.stand_in.attaches) == 2


async def test_acceptance_takes_longer_than_the_early_attach_lives(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.prompt_request.EARLY_ATTACH_S", 0.1)
    running.stand_in.ignored_infers = 1
    assert (await running.complete()).json()["choices"][0]["text"] == text_of(0, 4)
    assert len(running.stand_in.detaches) == 1
    assert len(running.stand_in.attaches) == 2


async def test_rule_14_a_lost_batch(running: Running, open_stream: Open) -> None:
    running.stand_in.script = Script(num_tokens=8, holds_at=3)
    streaming = await open_stream()
    seen = await streaming.read_until(b" w2")
    running.stand_in.drop_batches(2)
    running.stand_in.release()
    seen += await streaming.read_until(b"[DONE]")
    assert [seen.count(b'" w%d"' % index) for index in range(8)] == [1] * 8
    assert [attach.positions for attach in running.stand_in.attaches][:2] == [(0,), (3,)]
    assert running.value("tokenbus_reattached_streams_total") >= 1


async def test_rule_14_a_lost_last_batch(running: Running, open_stream: Open) -> None:
    """Only the heartbeat tells."""
    running.stand_in.script = Script(num_tokens=4, holds_at=3)
    streaming = await open_stream()
    await streaming.read_until(b" w2")
    running.stand_in.drop_batches(1)
    running.stand_in.release()
    assert b" w3" in await streaming.read_until(b"[DONE]")


async def test_rule_14_a_detokenizer_dies(running: Running, open_stream: Open) -> None:
    running.stand_in.script = Script(num_tokens=8, holds_at=3)
    streaming = await open_stream()
    seen = await streaming.read_until(b" w2")
    running.stand_in.restart_detokenizer("detokenizer-2")
    running.stand_in.let_go()
    seen += await streaming.read_until(b"[DONE]")
    assert [seen.count(b'" w%d"' % index) for index in range(8)] == [1] * 8


async def test_rule_15_straight_to_one_heard_of(running: Running) -> None:
    """A detokenizer that took the attach from the queue group and says nothing is passed by."""
    running.stand_in.detokenizer.is_silent = True
    assert (await running.complete()).json()["choices"][0]["text"] == text_of(0, 4)
    assert len(running.stand_in.attaches) == 2


async def test_rule_15_a_slow_reader(running: Running, open_stream: Open) -> None:
    """Its deltas are dropped while more than 64 KB wait for it, and it gets every one of them in the end."""
    running.stand_in.script = Script(num_tokens=60, text=lambda start, stop: "x" * 200_000 + f" w{start};")
    streaming = await open_stream()
    await until(lambda: running.stand_in.detaches, "a pause")
    seen = await streaming.read_until(b"[DONE]")
    assert [seen.count(b" w%d;" % index) for index in range(60)] == [1] * 60
    assert len(running.stand_in.attaches) > 1


async def test_the_bus_goes_and_comes_back(nats_server: NatsServer, running: Running, open_stream: Open) -> None:
    running.stand_in.script = Script(num_tokens=8, holds_at=3)
    streaming = await open_stream()
    seen = await streaming.read_until(b" w2")
    await asyncio.to_thread(nats_server.kill)
    await asyncio.to_thread(nats_server.restart)
    running.stand_in.release()
    seen += await streaming.read_until(b"[DONE]")
    assert [seen.count(b'" w%d"' % index) for index in range(8)] == [1] * 8


async def test_rule_17_a_request_too_large_for_the_bus(running: Running) -> None:
    """Refused before it is published; the connection, and with it all streams, lives on."""
    assert running.host.bus.max_payload < 5 * 2**20
    answer = await running.complete(prompt="a" * (running.host.bus.max_payload + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert (await running.complete()).status_code == 200


async def test_malformed_messages_harm_nobody(running: Running) -> None:
    hub = running.gateway.pipeline.hub
    for junk in (b"", b"\xc1", b"\x93\x01", b"{}", b"[" * 100_000):
        for subject in ("tb.v1.heartbeat.tokenizer", "tb.v1.heartbeat.s0.leader", hub._inbox, f"{hub._replies}.7"):
            running.stand_in.bus.publish(subject, junk)
    await running.stand_in.bus.flush()
    assert (await running.complete()).status_code == 200
    assert (hub.num_malformed, running.gateway.pipeline.num_malformed) == (10, 10)
    assert running.value("tokenbus_malformed_messages_total") == 20


async def test_sigterm_of_the_real_process(nats_server: NatsServer, stand_in: StandIn) -> None:
    """tokenbus gateway: serves, drains, exits 0."""
    port = free_port()
    argv = ["-m", "services.gateway", "--nats", nats_server.url, "--port", str(port), "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(LIMIT_S):
            while (await try_ready(port)) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    assert b"hello" not in log


async def try_ready(port: int) -> int:
    try:
        return (await send_raw(port, b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).status
    except OSError:
        return 0


async def test_events_are_ordered_after_resuming(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=4)
    ids = [id_ for id_, _ in events_of((await running.complete(stream=True)).text)[:-1]]
    assert ids == ["1", "2", "3", "4"]
