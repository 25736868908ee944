"""The tokenizer's service on a real nats-server: accepting and refusing."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shared import subjects
from shared.bus.client import Bus
from shared.bus.errors import NoResponders
from shared.bus.nats_log import NatsLog
from shared.log.fold import Change, Fold
from shared.log.memory import MemoryLog
from shared.log.port import LogUnavailable
from shared.messages.codec import decoder, encode
from shared.messages.control import ShardLoad, TokenizerHeartbeat
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Request
from tests.servers import NatsServer
from tests.text.tiny_tokenizers import byte_level
from tests.tokenizer.running_service import (
    ASK,
    LOAD,
    REQUEST_ID,
    decode_request,
    gateway_ask,
    memory_log,
    records,
    running,
)
from tests.waiting import LIMIT_S, until


async def test_a_request_over_a_real_log(nats_server: NatsServer) -> None:
    """Accepted means stored: the record is in JetStream, and a fold reads it."""
    async with running(nats_server) as run:
        inbox = await run.ask(subjects.INFER, gateway_ask(), as_json=False)
        answer = await inbox.next()
        assert answer == {"kind": "accepted", "request_id": REQUEST_ID, "num_prompt_tokens": 4, "shard": "s0"} | answer
        fold, seen = Fold(), []

        def on_record(change: Change) -> None:
            seen.append(change.record)

        tail = (await NatsLog.open(run.bus, "s0")).tail(fold, on_record, lambda: None)
        await tail.start()
        await until(lambda: seen, "the folded request")
        await tail.stop()
        (request,) = seen
        assert isinstance(request, Request)
        assert unpack_tokens(request.prompt_token_ids).tolist() == byte_level().encode("The capital").ids
        assert request.sampling.seed == 4


@pytest.mark.parametrize("as_json", [True, False])
async def test_a_native_client_is_answered_in_its_encoding_and_attached(nats_server: NatsServer, as_json: bool) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        inbox = await run.ask(subjects.INFER, ASK, as_json=as_json)
        answer = await inbox.next()
        assert answer["kind"] == "accepted" and len(answer["request_id"]) == 32
        assert inbox.raw[0].startswith(b"{") == as_json
        await until(lambda: run.attaches, "attachment")
        (attach,) = run.attaches
        assert (attach.request_id, attach.inbox) == (answer["request_id"], inbox.subject)
        assert (attach.style, attach.positions) == ("json" if as_json else "msgpack", ())
        assert decode_request(records(log, "req")[0]).request_id == answer["request_id"]
        assert run.metric("requests_total", outcome="accepted") == 1


async def test_rule_12_retries_are_one_request_and_each_is_answered(nats_server: NatsServer) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        same = msgspec.json.encode(gateway_ask())
        inboxes = [await run.ask(subjects.INFER, same) for _ in range(4)]
        answers = [await inbox.next() for inbox in inboxes]
        assert all(answer == answers[0] and answer["kind"] == "accepted" for answer in answers)
        assert len(records(log, "req")) == 1


async def test_rule_12_a_retry_while_the_log_is_slow_joins_the_first(nats_server: NatsServer) -> None:
    class SlowLog(MemoryLog):
        def __init__(self) -> None:
            super().__init__(time.time_ns)
            self.gate = asyncio.Event()
            self.calls: list[str] = []

        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            self.calls.append(message_id)
            await self.gate.wait()
            return await super().append(kind, data, message_id, horizon_s)

    log = SlowLog()
    async with running(nats_server, log) as run:
        same = msgspec.json.encode(gateway_ask())
        inboxes = [await run.ask(subjects.INFER, same) for _ in range(3)]
        await until(lambda: run.metric("retries_total") == 2, "retries")
        log.gate.set()
        assert {(await inbox.next())["kind"] for inbox in inboxes} == {"accepted"}
        assert log.calls == [f"req-{REQUEST_ID}"]


async def test_return_token_ids_gives_the_prompts(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log()) as run:
        asked = gateway_ask(params={"return_token_ids": True}, prompt=[5, 6, 7])
        answer = await (await run.ask(subjects.INFER, asked)).next()
        assert answer["prompt_token_ids"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"prompt": []}, 400, "prompt", None),
        ({"prompt": "wxyz " * 200}, 400, "prompt", "context_length_exceeded"),
        ({"params": {"temperature": 3}}, 400, "temperature", None),
        ({"request_id": "nope"}, 400, "request_id", None),
        ({"deadline_s": -1}, 400, "deadline_s", None),
    ],
)
async def test_refusals_reach_the_client_with_the_four_keys(
    nats_server: NatsServer, fields: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        answer = await (await run.ask(subjects.INFER, {**ASK, **fields})).next()
        error = answer["error"]
        assert (answer["kind"], answer["status"]) == ("error", status)
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["code"]) == (param, code)
        assert not log.records and not run.attaches


@pytest.mark.parametrize(
    ("load", "code"),
    [
        (ShardLoad(num_workers=0), "no_worker"),
        (ShardLoad(num_workers=1, num_queued_reqs=100), "queue_full"),
        (ShardLoad(num_workers=1, num_queued_tokens=1000), "queue_full"),
        (ShardLoad(num_workers=1, log_full=True), "log_full"),
    ],
)
async def test_rule_13_what_the_leader_says_is_refused_early(
    nats_server: NatsServer, load: ShardLoad, code: str
) -> None:
    log = memory_log()
    async with running(nats_server, log, max_num_queued_reqs=100, max_num_queued_tokens=1000) as run:
        await run.load(load)
        answer = await (await run.ask(subjects.INFER, ASK)).next()
        assert (answer["status"], answer["error"]["code"]) == (503, code)
        assert answer["retry_after_s"] > 0
        assert not log.records
        await run.load(LOAD)
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


async def test_a_full_or_lost_log_is_a_503(nats_server: NatsServer) -> None:
    class LostLog(MemoryLog):
        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            raise LogUnavailable("gone")

    log = memory_log()
    log.full = True
    for each, code in ((log, "log_full"), (LostLog(time.time_ns), "log_unavailable")):
        async with running(nats_server, each) as run:
            answer = await (await run.ask(subjects.INFER, ASK)).next()
            assert (answer["status"], answer["error"]["code"]) == (503, code)
            cancel = await (await run.ask(subjects.CANCEL, {"request_id": REQUEST_ID})).next()
            assert (cancel["kind"], cancel["status"]) == ("error", 503)


async def test_rule_17_a_record_over_max_payload_is_a_413_and_the_connection_lives(nats_server: NatsServer) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        models = run.service._models
        models["tiny"] = replace(models["tiny"], max_model_len=10_000_000)
        await run.load(ShardLoad(num_workers=1, max_model_len=0))
        too_many = run.host.bus.max_payload // 4
        data = encode({**ASK, "prompt": [5] * too_many})
        assert len(data) <= run.host.bus.max_payload
        answer = await (await run.ask(subjects.INFER, data)).next()
        assert (answer["status"], answer["error"]["code"]) == (413, "request_too_large")
        assert not log.records
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


async def test_long_prompts_are_encoded_in_a_thread(nats_server: NatsServer) -> None:
    log = memory_log()
    async with running(nats_server, log, inline_bytes=0) as run:
        inboxes = [await run.ask(subjects.INFER, {**ASK, "prompt": f"Paris {index}"}) for index in range(20)]
        assert {(await inbox.next())["kind"] for inbox in inboxes} == {"accepted"}
        texts = [
            byte_level().decode(unpack_tokens(decode_request(data).prompt_token_ids)) for data in records(log, "req")
        ]
        assert sorted(texts) == sorted(f"Paris {index}" for index in range(20))


async def test_more_requests_than_may_run_at_once_are_refused(nats_server: NatsServer) -> None:
    class StuckLog(MemoryLog):
        gate = asyncio.Event()

        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            await self.gate.wait()
            return await super().append(kind, data, message_id, horizon_s)

    log = StuckLog(time.time_ns)
    async with running(nats_server, log, max_concurrent_requests=2) as run:
        waiting = [await run.ask(subjects.INFER, ASK) for _ in range(2)]
        await until(lambda: run.service._intake.num_in_flight == 2, "two requests at work")
        for _ in range(4):
            answer = await (await run.ask(subjects.INFER, ASK)).next()
            assert (answer["status"], answer["error"]["code"]) == (503, "too_many_requests")
        log.gate.set()
        assert {(await inbox.next())["kind"] for inbox in waiting} == {"accepted"}


async def test_a_log_that_answers_no_append_closes_the_door_until_it_does(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nats-server does while its disk is full."""

    class SilentLog(MemoryLog):
        gate = asyncio.Event()

        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            await self.gate.wait()
            return await super().append(kind, data, message_id, horizon_s)

    monkeypatch.setattr("services.tokenizer.intake.STUCK_LOG_S", 0.1)
    log = SilentLog(time.time_ns)
    async with running(nats_server, log) as run:
        waiting = await run.ask(subjects.INFER, ASK)
        await until(lambda: run.service._intake._appending_since, "an append")
        await asyncio.sleep(0.15)
        answer = await (await run.ask(subjects.INFER, ASK)).next()
        assert (answer["status"], answer["error"]["code"]) == (503, "log_stuck")
        assert answer["retry_after_s"] > 0
        log.gate.set()
        assert (await waiting.next())["kind"] == "accepted", "what was taken is kept"
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


async def test_a_bug_in_one_request_is_a_500_and_no_more(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(nats_server, memory_log()) as run:

        def broken(*args: object, **options: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("services.tokenizer.intake.prepare", broken)
        answer = await (await run.ask(subjects.INFER, ASK)).next()
        assert (answer["status"], answer["error"]["type"]) == (500, "server_error")
        assert "bug" not in answer["error"]["message"]
        monkeypatch.undo()
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


# ---- cancel and attach ----------------------------------------------------------------------------------------------


async def test_heartbeats_list_the_models(nats_server: NatsServer) -> None:
    seen: list[TokenizerHeartbeat] = []
    decode = decoder(TokenizerHeartbeat)
    async with running(nats_server, memory_log()) as run:
        await run.bus.subscribe(subjects.TOKENIZER_HEARTBEAT, lambda _s, _r, data, _h: seen.append(decode(data)))
        await run.load(ShardLoad(num_workers=1, max_model_len=100))
        await until(lambda: seen and seen[-1].models[0].max_model_len == 100, "a heartbeat")
        (card,) = seen[-1].models
        assert (seen[-1].tokenizer, card.name, card.version, card.created) == (
            run.host.name,
            "tiny",
            "1",
            1_700_000_000,
        )


async def test_a_drain_answers_what_was_taken_and_takes_no_more(nats_server: NatsServer) -> None:
    class StuckLog(MemoryLog):
        gate = asyncio.Event()

        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            await self.gate.wait()
            return await super().append(kind, data, message_id, horizon_s)

    log = StuckLog(time.time_ns)
    async with running(nats_server, log) as run:
        taken = await run.ask(subjects.INFER, gateway_ask())
        await until(lambda: run.service._intake.num_in_flight == 1, "a request at work")
        run.host.stopping.set()
        await until(lambda: not run.host.bus._client.handlers.keys() & _queue_sids(run.host.bus), "no subscription")
        log.gate.set()
        assert (await taken.next())["kind"] == "accepted"


def _queue_sids(bus: Bus) -> set[int]:
    """Ids of the subscriptions in the tokenizers' queue group."""
    return {sid for sid, sub in bus._client._subs.items() if sub.queue == subjects.TOKENIZER_QUEUE}


async def test_health_and_the_service_api_tell_what_happens(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log()) as run:
        await (await run.ask(subjects.INFER, {**ASK, "model": "nope"})).next()
        await run.load(ShardLoad(num_workers=0))
        details = run.host.health().details
        assert (details["models"], details["accepting"]) == ({"tiny": "1"}, "No worker is alive.")
        stats = msgspec.json.decode(run.host.micro.answer("$SRV.STATS"))
        by_name = {endpoint["name"]: endpoint for endpoint in stats["endpoints"]}
        assert by_name["infer"]["num_requests"] == by_name["infer"]["num_errors"] == 1
        assert by_name["infer"]["last_error"] == "404 model_not_found"


async def test_requests_are_taken_once_the_leader_is_heard(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log(), attach=False, lead=False) as run:
        with pytest.raises(NoResponders):
            await run.bus.request(subjects.INFER, encode(gateway_ask()), 5)
        assert not run.host.health().ready
        await until(lambda: run.say(LOAD) or run.host.health().ready, "subscriptions")
        inbox = await run.ask(subjects.INFER, gateway_ask(), as_json=False)
        assert (await inbox.next())["kind"] == "accepted"


@pytest.mark.parametrize(("drain_timeout_s", "hurry"), [(1.2, False), (1000.0, True)])
async def test_a_stop_while_the_log_is_away_leaves_requests_unanswered_and_ends_in_time(
    nats_server: NatsServer, drain_timeout_s: float, hurry: bool
) -> None:
    """The record may be stored: a client that asks again by the same id gets the same request. A second signal ends
    the drain at once."""
    asked = asyncio.Event()

    class AwayLog(MemoryLog):
        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("never")

    async with running(nats_server, AwayLog(time.time_ns), drain_timeout_s=drain_timeout_s) as run:
        inbox = await run.ask(subjects.INFER, ASK)
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        if hurry:
            run.host.hurrying.set()
    assert inbox.raw == []
