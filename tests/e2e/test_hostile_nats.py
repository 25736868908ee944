"""Rows N1 to N8 of bad inputs on every subject of a running node: dropped and counted, nobody dies, nothing is lost."""

import asyncio
import re
from pathlib import Path

import msgspec
import nats
import nats.errors

from shared import subjects
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End, Fence, Rows
from tests.e2e.probes import probe, sample
from tests.e2e.streams import many
from tests.log.records import rows
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MODEL = "smollm2-135m"
WORKER = "worker-0-00000000"

GARBAGE = {
    "N1 empty": b"",
    "N1 invalid byte": b"\xc1",
    "N1 truncated": encode(Rows(worker="w", epoch=1, step=1))[:-3],
    "N1 trailing bytes": encode(Rows(worker="w", epoch=1, step=1)) + b"\x00",
    "N2 depth": b"\x91" * 100_000,
    "N2 claimed length": b"\xdd\xff\xff\xff\xff",
    "N2 empty arrays": b"\xdd\x00\x0f\xff\xff" + b"\x90" * 1_000_000,
    "N3 extension": b"\xc7\x04\x05abcd",
    "N3 uint64 in an id": b"\x92\x01\xcf" + b"\xff" * 8,
    "N3 not a number": b"\x92\x01\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "N4 unknown tag": msgspec.msgpack.encode(["nothing", 1]),
    "N4 foreign version": encode(Rows(v=99, worker="w", epoch=1, step=1)),
    "N4 missing fields": msgspec.msgpack.encode([1]),
    "N8 JSON": b'{"v":1,"worker":"w"}',
    "N8 broken JSON": b'{"v":1,',
    "N8 Latin-1": '{"prompt":"é"}'.encode("latin-1"),
}

INTERNAL = [
    *(subjects.log_subject("s0", kind) for kind in subjects.LOG_KINDS),
    subjects.worker_heartbeat("s0"),
    subjects.leader_heartbeat("s0"),
    subjects.detokenizer_heartbeat("s0"),
    subjects.TOKENIZER_HEARTBEAT,
    subjects.cache_report("s0"),
    subjects.plan_gap("s0"),
    subjects.attach("s0"),
    subjects.detach("s0"),
    subjects.INFER,
    subjects.CANCEL,
    subjects.CLIENT_ATTACH,
]


def misplaced_records(epoch: int) -> list[tuple[str, bytes]]:
    """N5: records that are well-formed, but nobody's, too early, too late, or of an older epoch."""
    return [
        ("out", encode(rows(WORKER, epoch, 7, (1 << 40, 0, 5, 0)))),
        ("out", encode(rows(WORKER, epoch - 1, 1, (1 << 40, 0, 5, 0)))),
        ("end", encode(End(request_id="f" * 32, reason="stop_string", position=3))),
        ("end", encode(Done(request_id="f" * 32, positions=(3,), reasons=("length",)))),
        ("fence", encode(Fence(kind="worker", leader="nobody", worker=WORKER))),
    ]


async def test_garbage_on_every_subject_harms_nobody(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", "--engine", "fake") as node:
        before = node.pids()
        connection = await nats.connect(node.nats)
        plans = [
            subjects.plan(match) for match in re.findall(r"name=(worker-\d+-[0-9a-f]{8})", node.log("worker-0"))[:1]
        ]
        assert plans, "the worker's log names it"
        for subject in [*INTERNAL, *plans]:
            for data in GARBAGE.values():
                await connection.publish(subject, data, reply=connection.new_inbox())
        for kind, data in misplaced_records(1):
            await connection.publish(subjects.log_subject("s0", kind), data)
        await connection.publish(subjects.INFER, b'{"v":1}', reply="tb.v1.cancel")
        await connection.publish(subjects.CANCEL, b'{"request_id":"' + b"e" * 32 + b'"}')
        await connection.flush()
        bodies = [
            {"model": MODEL, "prompt": f"after {n}", "max_tokens": 40, "ignore_eos": True, "seed": n} for n in range(8)
        ]
        answers = await many(node.url, "/v1/completions", bodies)
        assert [answer.error for answer in answers if not answer.whole] == []
        assert {len(answer.token_ids) for answer in answers} == {40}
        assert node.pids() == before
        report = await asyncio.to_thread(node.verify)
        assert report["foreign"] >= 1, "the misplaced outcome is seen"
        assert {name: n for name, n in wrongs(report).items() if name != "foreign"} == {}
        await connection.close()


async def test_n6_a_request_past_its_deadline_ends_and_says_so(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", "--engine", "fake", "--fake-step-ms", "50") as node:
        connection = await nats.connect(node.nats)
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox)
        message = {"v": 1, "model": MODEL, "prompt": "slow", "params": {"max_tokens": 1000}, "deadline_s": 0.5}
        await connection.publish(subjects.INFER, msgspec.json.encode(message), reply=inbox)
        kinds = []
        while not kinds or kinds[-1]["kind"] not in ("end", "error"):
            kinds.append(msgspec.json.decode((await subscription.next_msg(timeout=LIMIT_S)).data))
        assert kinds[0]["kind"] == "accepted"
        assert kinds[-1]["error"]["code"] == "deadline_exceeded"
        await connection.close()


async def test_a_disconnect_is_an_end_at_once(tmp_path: Path) -> None:
    """Row 47: no plan made after the End is folded holds the sequence; at most two planned rows are computed."""
    with RunningNode(tmp_path / "node", "--engine", "fake", "--fake-step-ms", "20") as node:
        port = int(node.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = msgspec.json.encode(
            {"model": MODEL, "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        )
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        while b"data: " not in await reader.read(4096):
            continue
        writer.transport.abort()

        def cancelled() -> bool:
            return any(request["finish_reason"] == "abort" for request in node.verify()["requests"].values())

        await until(lambda: cancelled(), "the End in the log")
        text = await asyncio.to_thread(probe, node, "scheduler-0", "/metrics")
        assert sample(text, "tokenbus_scheduler_overrun_rows_total") <= 2
        assert sample(text, "vllm:num_requests_running") == 0
        assert sample(text, "vllm:kv_cache_usage_perc") == 0
