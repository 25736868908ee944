"""A term of leadership over a fold that the test feeds: what is sent, what goes into the log."""

import pytest
from msgspec.structs import replace

from services.scheduler.core.worker_link import SILENCE_S, LinkState
from services.scheduler.leader import SUCCESSOR_S
from shared.block_hash import HASH_BYTES
from shared.messages.control import CacheReport
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import Done, End, Fence
from shared.queue_limits import QueueLimits
from tests.log.records import PROMPT, FoldUnderTest, request, rows
from tests.scheduler.leader_term import Term, heartbeat

RID = "a" * 32
SMALL = {"small": 4}


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


def with_a_big_worker(is_begun: bool) -> Term:
    """A term with a worker "big", one that is too small for the request, and the request."""
    term = Term(FoldUnderTest())
    for worker, num_blocks in (SMALL | {"big": 32}).items():
        term.join(worker, num_blocks)
    term.feed(request(RID, n=2, max_tokens=100))
    if is_begun:
        sequences = term.fold.requests[RID].sequences
        term.feed(rows("big", term.fold.takeover, 1, *(term.fold.row(sequence, 9) for sequence in sequences)))
    return term


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("has_successor", [False, True])
def test_rule_13_what_only_a_worker_that_died_could_run_waits_for_a_successor_but_not_for_ever(
    is_begun: bool, has_successor: bool
) -> None:
    term = with_a_big_worker(is_begun)
    term.pass_time(SILENCE_S + 0.1, workers=SMALL)
    assert term.fenced == ["big"]
    term.feed(Fence(kind="worker", leader="s2", worker="big"))
    term.pass_time(SUCCESSOR_S - 0.1, workers=SMALL)
    assert term.records == [] and not term.leader.core.num_running
    if has_successor:
        term.join("next", num_blocks=32)
    term.pass_time(0.2, workers=SMALL | ({"next": 32} if has_successor else {}))
    term.fold_appended()
    reasons = {sequence.reason for sequence in term.fold.requests[RID].sequences}
    if has_successor:
        assert reasons == {None} and term.leader.core.num_running >= 1, "suspects run one by one"
    else:
        assert reasons == {"error" if is_begun else "rejected"} and not term.leader.core.num_waiting


@pytest.mark.parametrize("is_begun", [False, True])
def test_rule_13_nothing_is_rejected_while_the_worker_that_can_run_it_opens_again(is_begun: bool) -> None:
    term = with_a_big_worker(is_begun)
    term.feed(Fence(kind="worker", leader="s2", worker="big"))
    term.feed(Fence(kind="worker", leader="s2", worker="small"))
    term.join("small", num_blocks=4)
    term.pass_time(SUCCESSOR_S + 1.0, workers=SMALL | {"big": 32})
    assert term.records == [] and term.leader.core.num_waiting == 2
    term.join("big", num_blocks=32)
    assert term.records == [] and term.leader.core.num_running == 2


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


def ids(term: Term) -> list[str]:
    return [record.request_id for record in term.records if isinstance(record, End)]


@pytest.mark.parametrize("limits", [QueueLimits(max_num_reqs=2), QueueLimits(max_num_tokens=2 * len(PROMPT))])
def test_rule_13_the_queue_takes_what_its_limits_allow_and_rejects_the_next_with_a_code(limits: QueueLimits) -> None:
    term = Term(FoldUnderTest(), limits=limits)
    for number in range(4):
        term.feed(request(f"{number:032x}", n=2))
    assert ids(term) == [f"{number:032x}" for number in (2, 3)]
    term.fold_appended()
    for number in range(4):
        sequences = term.fold.requests[f"{number:032x}"].sequences
        ends = [(sequence.end, sequence.reason, sequence.code) for sequence in sequences]
        assert ends == [(None, None, None) if number < 2 else (0, "rejected", "queue_full")] * 2
    assert [type(record) for record in term.records] == [Done, Done]
    assert term.leader.num_turned_away == 2
    assert term.leader.load(log_full=False).num_queued_reqs == 2


def test_rule_13_room_in_the_queue_is_there_again_once_something_begins_or_ends() -> None:
    term = Term(FoldUnderTest(), limits=QueueLimits(max_num_reqs=1))
    first, second, third, fourth = (f"{number:032x}" for number in range(4))
    term.feed(request(first))
    term.feed(request(second))
    assert ids(term) == [second]
    term.feed(End(request_id=first, reason="cancel"))
    term.feed(request(third))
    term.join("w1", num_blocks=32)
    assert term.num_plans and term.leader.load(log_full=False).num_queued_reqs == 0
    term.feed(request(fourth))
    assert ids(term) == [second]


def test_rule_13_what_an_earlier_leader_let_in_is_never_rejected_by_the_queues_limits() -> None:
    fold = FoldUnderTest()
    fold.feed(Fence(kind="takeover", leader="s1"))
    for number in range(5):
        fold.feed(request(f"{number:032x}"))
    term = Term(fold, limits=QueueLimits(max_num_reqs=2))
    assert term.records == [] and term.leader.core.num_waiting == 5
    term.feed(request("f" * 32))
    assert ids(term) == ["f" * 32]


def test_rule_13_sequences_of_a_lost_worker_wait_outside_the_queue() -> None:
    term = Term(FoldUnderTest(), limits=QueueLimits(max_num_reqs=1))
    term.join("w1", num_blocks=32)
    term.feed(request(RID))
    term.feed(Fence(kind="worker", leader="s2", worker="w1"))
    load = term.leader.load(log_full=False)
    assert term.leader.num_turned_away == 0
    assert (load.num_waiting, load.num_queued_reqs, load.num_queued_tokens) == (1, 0, 0)
    term.feed(request("b" * 32))
    assert term.records == []


def test_rule_07_a_rejection_that_comes_late_cuts_nothing_that_a_later_leader_has_run() -> None:
    """The record of a leader that is deposed meanwhile ends the request where it stands, not at its beginning."""
    old = Term(FoldUnderTest(), "s1", limits=QueueLimits(max_num_reqs=1))
    old.feed(request("b" * 32))
    old.feed(request(RID))
    (late,) = old.records
    new = Term(old.fold)
    new.join("w1", num_blocks=32)
    (sequence,) = new.fold.requests[RID].sequences
    new.feed(rows("w1", new.fold.epoch_of("w1"), 1, new.fold.row(sequence, 9)))
    new.feed(late)
    assert (list(sequence.tokens), sequence.end) == ([9], 1)
    assert new.records == [], "the outcome is the detokenizers'"


def test_rule_03_a_worker_that_hangs_with_a_beating_heart_is_asked_to_be_fenced_well_within_3_seconds() -> None:
    """What is left of the 3 s is for the append and its way back."""
    term = Term(FoldUnderTest())
    term.join("w1", num_blocks=32)
    epoch = term.fold.epoch_of("w1")
    term.feed(request(RID, max_tokens=100))
    (sequence,) = term.fold.requests[RID].sequences
    for step in range(1, 20):
        term.pass_time(0.02, by_s=0.02)
        term.feed(rows("w1", epoch, step, term.fold.row(sequence, 9)))
    hung = term.now
    beat = replace(heartbeat("w1", epoch, 32), next_plan=22, started=20, finished=19, idle=False)
    while not term.fenced:
        term.pass_time(0.05, by_s=0.05)
        term.leader.on_worker_heartbeat(beat, term.now)
        assert term.now - hung < 2.9
    assert term.now - hung > 2.5, "a busy machine is not taken for a hung worker"


def test_every_counted_frame_is_progress_that_the_load_tells() -> None:
    term = Term(FoldUnderTest())
    term.join("w1", num_blocks=32)
    epoch = term.fold.epoch_of("w1")
    term.feed(request(RID))
    (sequence,) = term.fold.requests[RID].sequences
    assert term.leader.load(log_full=False).num_folded_frames == 0
    term.feed(rows("w1", epoch, 1, term.fold.row(sequence, 9)))
    term.feed(rows("w1", epoch, 1, term.fold.row(sequence, 9)))
    term.feed(rows("w1", epoch - 1, 2, term.fold.row(sequence, 9)))
    assert term.leader.load(log_full=False).num_folded_frames == 1
    term.feed(rows("w1", epoch, 2))
    assert term.leader.load(log_full=False).num_folded_frames == 2
