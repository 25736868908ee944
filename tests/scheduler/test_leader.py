"""A term of leadership over a fold that the test feeds: what is sent, what goes into the log."""

from collections.abc import Callable

import pytest

from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.worker_link import LinkState
from services.scheduler.leader import Leader, LeaderPorts
from shared.block_hash import HASH_BYTES
from shared.logs import get_logger
from shared.messages.control import CacheReport, WorkerHeartbeat
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import Done, End, Fence
from tests.log.records import FoldUnderTest, request, rows

RID = "a" * 32
BLOCK_SIZE = 4


def heartbeat(worker: str, epoch: int, num_blocks: int) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker=worker,
        epoch=epoch,
        next_plan=1,
        started=0,
        finished=0,
        idle=True,
        leaving=False,
        model="m",
        model_version="1",
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=128,
    )


class Term:
    """A leader that has just taken over; what it appends is kept, and folded by fold_appended."""

    def __init__(self, fold: FoldUnderTest) -> None:
        self.fold = fold
        self.now = 100.0
        self.records: list[End | Done] = []
        self.fenced: list[str] = []
        fold.feed(Fence(kind="takeover", leader="s2"))
        ports = LeaderPorts(
            send=lambda subject, data: None,
            send_plan=lambda subject, data: None,
            append=lambda records: self.records.extend(record for record, _ in records),
            fence=self._fence,
            max_plan_bytes=lambda: 2**20,
        )
        self.leader = Leader(fold, Scheduler(), ports, get_logger())
        self.leader.start([], self.now)

    def _fence(self, worker: str, answered: Callable[[bool], None]) -> None:
        self.fenced.append(worker)

    def join(self, worker: str, num_blocks: int) -> None:
        """A worker comes and reports an empty cache."""
        epoch = self.fold.epoch_of(worker)
        self.leader.on_worker_heartbeat(heartbeat(worker, epoch, num_blocks), self.now)
        self.leader.on_cache_report(CacheReport(worker=worker, epoch=epoch), self.now)

    def fold_appended(self) -> None:
        """What was appended becomes part of the log; what follows from it is appended next time."""
        records, self.records = self.records, []
        for record in records:
            self.leader.on_change(self.fold.feed(record), self.now)


def begun(num_choices: int, num_tokens: int, **sampling: object) -> FoldUnderTest:
    """A fold with a request that an earlier leader's worker has begun: each choice has num_tokens tokens."""
    fold = FoldUnderTest()
    fold.feed(Fence(kind="takeover", leader="s1"))
    sequences = fold.accept(request(RID, n=num_choices, **sampling))
    for step in range(1, num_tokens + 1):
        fold.feed(rows("w1", fold.takeover, step, *(fold.row(sequence, 9) for sequence in sequences)))
    return fold


@pytest.mark.parametrize("num_ended", [0, 1, 2])
def test_a_deadline_holds_for_whatever_choices_still_run_after_a_take_over(num_ended: int) -> None:
    fold = begun(3, 2)
    for choice in range(num_ended):
        fold.feed(End(request_id=RID, choice=choice, reason="stop_string", position=1))
    term = Term(fold)
    deadline_ns = fold.requests[RID].request.deadline_ns
    term.leader.tick(term.now, deadline_ns - 1)
    assert term.records == []
    term.leader.tick(term.now, deadline_ns)
    assert [(record.request_id, record.reason) for record in term.records if isinstance(record, End)] == [
        (RID, "deadline")
    ]
    term.fold_appended()
    reasons = [sequence.reason for sequence in fold.requests[RID].sequences]
    assert reasons == ["stop_string"] * num_ended + ["deadline"] * (3 - num_ended)


@pytest.mark.parametrize("num_ended", [0, 1])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_request_that_only_a_dead_worker_could_run_fails_where_its_readers_are(
    num_tokens: int, num_ended: int
) -> None:
    fold = begun(2, num_tokens, max_tokens=100)
    for choice in range(num_ended):
        fold.feed(End(request_id=RID, choice=choice, reason="stop_string", position=num_tokens))
    term = Term(fold)
    term.join("w2", num_blocks=4)
    assert {type(record) for record in term.records} == {End}, "the outcome is the detokenizers', who know all ends"
    term.fold_appended()
    for sequence in fold.requests[RID].sequences[num_ended:]:
        assert (sequence.end, sequence.reason) == (num_tokens, "error")
        assert "KV cache blocks" in sequence.message
    assert fold.requests[RID].sequences[0].end == num_tokens
    assert not term.leader.core.num_waiting


@pytest.mark.parametrize("worker_first", [True, False])
def test_rule_13_a_request_that_fits_nowhere_is_rejected_with_its_outcome(worker_first: bool) -> None:
    term = Term(FoldUnderTest())
    if worker_first:
        term.join("w1", num_blocks=4)
    term.leader.on_change(term.fold.feed(request(RID, n=2, max_tokens=100)), term.now)
    if not worker_first:
        assert term.records == []
        term.join("w1", num_blocks=4)
    assert {type(record) for record in term.records} == {End}
    term.fold_appended()
    assert [type(record) for record in term.records] == [Done]
    term.fold_appended()
    state = term.fold.requests[RID]
    assert state.done is not None and state.done.reasons == ("rejected", "rejected")
    assert [(sequence.end, sequence.reason) for sequence in state.sequences] == [(0, "rejected")] * 2


@pytest.mark.parametrize(
    ("block_ids", "block_hashes"),
    [(b"\0\0\0", b""), (b"", b"x" * HASH_BYTES), (pack_tokens([1, 2]), b"x" * HASH_BYTES), (pack_tokens([1]), b"x")],
)
def test_a_malformed_cache_report_is_dropped(block_ids: bytes, block_hashes: bytes) -> None:
    term = Term(FoldUnderTest())
    epoch = term.fold.epoch_of("w1")
    term.leader.on_worker_heartbeat(heartbeat("w1", epoch, 8), term.now)
    report = CacheReport(worker="w1", epoch=epoch, block_ids=block_ids, block_hashes=block_hashes)
    term.leader.on_cache_report(report, term.now)
    assert term.leader.links["w1"].state is LinkState.OPENING
    term.join("w1", num_blocks=8)
    assert term.leader.links["w1"].state is LinkState.OPEN


@pytest.mark.parametrize("block_id", [-1, 8, 2**31 - 1])
def test_a_cache_report_with_foreign_blocks_is_no_cache(block_id: int) -> None:
    term = Term(FoldUnderTest())
    epoch = term.fold.epoch_of("w1")
    term.leader.on_worker_heartbeat(heartbeat("w1", epoch, 8), term.now)
    report = CacheReport(worker="w1", epoch=epoch, block_ids=pack_tokens([block_id]), block_hashes=b"x" * HASH_BYTES)
    term.leader.on_cache_report(report, term.now)
    assert term.leader.links["w1"].state is LinkState.OPEN
    assert term.leader.core.check_integrity() == []
