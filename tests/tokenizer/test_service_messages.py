"""The tokenizer's service on a real nats-server: cancelling, attaching, and garbage."""

import os
from typing import Any

import msgspec
import pytest

from shared import subjects
from shared.messages.codec import encode
from tests.servers import NatsServer
from tests.tokenizer.running_service import (
    ASK,
    REQUEST_ID,
    decode_end,
    memory_log,
    records,
    running,
)
from tests.waiting import until


async def test_a_cancel_is_an_end_in_the_log(nats_server: NatsServer) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        for _ in range(2):
            answer = await (await run.ask(subjects.CANCEL, {"request_id": REQUEST_ID})).next()
            assert answer == {"kind": "cancelled", "request_id": REQUEST_ID}
        (data,) = records(log, "end")
        end = decode_end(data)
        assert (end.request_id, end.choice, end.reason, end.position) == (REQUEST_ID, -1, "cancel", None)
        run.bus.publish(subjects.CANCEL, msgspec.json.encode({"request_id": "f" * 32}))
        await until(lambda: len(records(log, "end")) == 2, "a cancel without a reply subject")


async def test_a_native_client_attaches_again_at_its_positions(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log()) as run:
        message = {"request_id": REQUEST_ID, "positions": [12, 9]}
        inboxes = [await run.ask(subjects.CLIENT_ATTACH, message) for _ in range(2)]
        await until(lambda: len(run.attaches) == 2, "attachments")
        assert [attach.inbox for attach in run.attaches] == [inbox.subject for inbox in inboxes]
        assert all(attach.positions == (12, 9) and attach.style == "json" for attach in run.attaches)
        assert run.attaches[0].number < run.attaches[1].number


async def test_rule_15_after_one_timeout_the_attach_goes_straight_to_one_heard_of(nats_server: NatsServer) -> None:
    """A stopped detokenizer stays in its queue group and takes attachments that it never answers."""
    async with running(nats_server, memory_log(), attach=False) as run:
        stuck: list[bytes] = []
        await run.bus.subscribe(
            subjects.attach("s0"), lambda _s, _r, data, _h: stuck.append(data), subjects.DETOKENIZER_QUEUE
        )
        await run.start_detokenizer(by_queue=False)
        inbox = await run.ask(subjects.INFER, ASK)
        await until(lambda: run.attaches, "direct attachment")
        await until(lambda: run.detached, "the first attachment taken back")
        assert (run.attaches[0].inbox, len(stuck)) == (inbox.subject, 1)


@pytest.mark.parametrize(
    "message",
    [
        {"request_id": "nope"},
        {"request_id": REQUEST_ID, "positions": [-1]},
        {"request_id": REQUEST_ID, "positions": [0] * 300},
        {"request_id": REQUEST_ID, "positions": [2**40]},
    ],
)
async def test_bad_attachments_are_refused(nats_server: NatsServer, message: dict[str, Any]) -> None:
    async with running(nats_server, memory_log()) as run:
        answer = await (await run.ask(subjects.CLIENT_ATTACH, message)).next()
        assert (answer["kind"], answer["status"]) == ("error", 400)
        assert not run.attaches


# ---- garbage --------------------------------------------------------------------------------------------------------

GARBAGE = [
    *(b"", b"\xc1", b"\x93\x01", b"{}", b"{", b'{"v":99}', b"[" * 100_000, b"\x91" * 100_000, os.urandom(500)),
    encode(ASK)[:-3],  # N1 truncated
    encode(ASK) + b"\x00",  # N1 trailing bytes
    b"\xdd\xff\xff\xff\xff",  # N2 a claimed length of 4 G
    b"\x90" * 1_000_000,  # N2 1 MB of empty arrays
    encode({**ASK, "model": msgspec.msgpack.Ext(5, b"x")}),  # N3 Ext
    encode({**ASK, "request_id": 2**64 - 1}),  # N3 uint64 max in an id
    encode({**ASK, "v": 3}),  # N4 foreign version
    encode({name: value for name, value in ASK.items() if name != "v"}),  # N4 missing version
    encode({"v": 1, "prompt": "x"}),  # N4 a required field removed
    msgspec.json.encode({**ASK, "prompt": "caf"}).replace(b"caf", b"caf\xe9"),  # N8 Latin-1
    b'{"v": 1, "model": "tiny", "prompt": "x"',  # N8 broken JSON
    b'{"v": 1, "model": "tiny", "prompt": "x", "deadline_s": NaN}',
]


@pytest.mark.parametrize("subject", [subjects.INFER, subjects.CANCEL, subjects.CLIENT_ATTACH])
async def test_n1_to_n8_garbage_is_dropped_counted_and_answered_only_at_inboxes(
    nats_server: NatsServer, subject: str
) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        for junk in GARBAGE:
            answer = await (await run.ask(subject, junk)).next()
            assert (answer["kind"], answer["error"]["type"]) == ("error", "invalid_request_error")
        assert run.metric("malformed_total", subject=subject) == len(GARBAGE)
        for reply in ("", "tb.v1.infer", "$SYS.x", "_INBOX", "other.subject"):
            await run.ask(subject, GARBAGE[1], reply=reply)
        await until(lambda: run.metric("malformed_total", subject=subject) == len(GARBAGE) + 5, "drops")
        assert not log.records
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


async def test_n6_good_requests_with_a_bad_reply_subject_are_dropped(nats_server: NatsServer) -> None:
    log = memory_log()
    async with running(nats_server, log) as run:
        seen: list[bytes] = []
        await run.bus.subscribe("evil.subject", lambda _s, _r, data, _h: seen.append(data))
        for reply in ("", "evil.subject", "_INBOX.x.>"):
            await run.ask(subjects.INFER, ASK, reply=reply)
        await until(lambda: run.metric("malformed_total", subject=subjects.INFER) == 3, "drops")
        assert not log.records and not seen


async def test_garbage_in_heartbeats_harms_nobody(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log()) as run:
        for subject in (subjects.leader_heartbeat("s0"), subjects.detokenizer_heartbeat("s0")):
            for junk in (b"", b"\xc1", b"{}", os.urandom(99)):
                run.bus.publish(subject, junk)
        assert (await (await run.ask(subjects.INFER, ASK)).next())["kind"] == "accepted"


# ---- life -----------------------------------------------------------------------------------------------------------
