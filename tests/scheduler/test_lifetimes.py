"""Requests that nobody reads any more, and deadlines, from the leader down to the fold."""

import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.lifetimes import GATEWAY_GONE
from services.scheduler.core.readership import ASK_EVERY_S, GATEWAY_SILENCE_S, HANG_S, RETURN_S
from shared.log.state import RequestState
from shared.messages.pipeline import Done, End, Fence, Reader, Request
from tests.log.records import SECOND_NS, FoldUnderTest, request, rows
from tests.scheduler.leader_term import Term

RID = "a" * 32
KEEP_S = 10.0


def owned(request_id: str = RID, owner: str = "g1", keep_s: float = 0.0, **sampling: object) -> Request:
    return msgspec.structs.replace(request(request_id, **sampling), owner=owner, keep_s=keep_s)


def reader(gateway: str, reads: bool) -> Reader:
    return Reader(request_id=RID, gateway=gateway, reads=reads)


def reasons(term: Term) -> list[str | None]:
    return [sequence.reason for sequence in term.fold.requests[RID].sequences]


def settle(term: Term) -> None:
    """What the leader wants is folded, and a tick later nothing more is wanted."""
    term.fold_appended()
    term.tick()
    assert term.records == []


@pytest.mark.parametrize("num_ended", [0, 1])
def test_a_request_of_a_silent_gateway_ends_with_cancel_and_not_before(num_ended: int) -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(n=2))
    for choice in range(num_ended):
        term.feed(End(request_id=RID, choice=choice, reason="stop_string", position=0))
    term.pass_time(5.0, "g1")
    term.pass_time(GATEWAY_SILENCE_S, "g2")
    assert term.records == []
    term.pass_time(0.05, "g2")
    assert term.records == [End(request_id=RID, reason="cancel", message=GATEWAY_GONE)]
    assert term.message_ids == [f"abandoned-{RID}"]
    settle(term)
    assert term.leader.num_abandoned == 1
    assert reasons(term) == ["stop_string"] * num_ended + ["cancel"] * (2 - num_ended)
    assert not term.leader.core.num_waiting


@pytest.mark.parametrize("keep_s", [0.0, KEEP_S])
def test_a_request_that_nobody_watches_is_never_abandoned(keep_s: float) -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(owner="", keep_s=keep_s))
    term.pass_time(60.0)
    assert term.records == [] and reasons(term) == [None]


def test_a_request_that_has_ended_is_left_alone_when_its_gateway_falls_silent() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.feed(End(request_id=RID, reason="cancel"))
    term.pass_time(5.0)
    assert term.records == []


def test_a_silent_gateway_that_is_on_the_bus_has_more_time() -> None:
    """It is asked for again and again; once the bus knows it no more, it is gone."""
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.on_bus.add("g1")
    term.pass_time(GATEWAY_SILENCE_S + HANG_S, by_s=0.05)
    assert term.records == []
    assert len(term.asked) == pytest.approx(HANG_S / ASK_EVERY_S, abs=2)
    term.on_bus.clear()
    term.pass_time(ASK_EVERY_S)
    assert term.records == [End(request_id=RID, reason="cancel", message=GATEWAY_GONE)]


def test_a_gateway_that_hangs_for_too_long_is_gone_though_the_bus_knows_it() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.on_bus.add("g1")
    term.pass_time(GATEWAY_SILENCE_S + HANG_S)
    assert term.records == []
    term.pass_time(0.05)
    assert [type(record) for record in term.records] == [End]


def test_that_the_bus_did_not_know_a_gateway_is_void_once_it_was_heard() -> None:
    """Its connection broke, and it has another one."""
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.on_bus.add("g1")
    term.pass_time(GATEWAY_SILENCE_S + 0.05)
    ((gateway, on_absent),) = term.asked
    assert gateway == "g1"
    term.hear("g1")
    on_absent()
    term.pass_time(GATEWAY_SILENCE_S + 1.0)
    assert term.records == []


@pytest.mark.parametrize("keep_s", [0.0, KEEP_S])
@pytest.mark.parametrize("heard_again", ["heartbeat", "pause", "nothing"])
def test_what_the_log_has_not_taken_holds_no_longer_than_the_silence(keep_s: float, heard_again: str) -> None:
    """A cut that takes a gateway off the bus may take the log away too, and be over before the log is back."""
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=keep_s))
    term.pass_time(GATEWAY_SILENCE_S + 0.05)
    (lost,) = term.records
    term.records.clear()  # the log is away
    if heard_again == "heartbeat":
        term.hear("g1")
    elif heard_again == "pause":
        term.leader.reset_clocks(term.now, was_deaf=True)
    assert [holds() for holds in term.holds] == [heard_again == "nothing"]
    term.pass_time(1.0)
    assert term.records == [], "once for each silence"
    term.pass_time(RETURN_S)
    assert [type(record) for record in term.records] == ([] if heard_again == "nothing" else [type(lost)])
    assert term.holds[-1]()
    term.records = [lost]
    settle(term)
    assert not any(holds() for holds in term.holds), "the log has it"
    assert term.leader.num_abandoned == (0 if keep_s else 1)


def test_that_nobody_reads_holds_no_longer_than_nobody_reads() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=KEEP_S))
    term.feed(reader("g1", reads=False))
    term.pass_time(KEEP_S + 0.1)
    assert [type(record) for record in term.records] == [End] and term.holds[-1]()
    term.records.clear()  # the log is away
    term.feed(reader("g2", reads=True))
    assert not term.holds[-1]()
    term.feed(reader("g2", reads=False))
    assert not term.holds[-1](), "the time starts anew"
    term.pass_time(KEEP_S + 0.1)
    assert [type(record) for record in term.records] == [End] and term.holds[-1]()


@pytest.mark.parametrize(("was_deaf", "patience_s"), [(False, GATEWAY_SILENCE_S), (True, RETURN_S)])
def test_a_paused_or_deaf_leader_gives_gateways_the_full_time_again(was_deaf: bool, patience_s: float) -> None:
    """And where the bus was away, time to come back to it: they may have been cut off for longer than the leader."""
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.now += 30.0
    term.leader.reset_clocks(term.now, was_deaf=was_deaf)
    term.pass_time(patience_s)
    assert term.records == []
    term.pass_time(0.05)
    assert [type(record) for record in term.records] == [End]


def test_a_new_leader_gives_gateways_that_it_never_heard_of_the_full_time() -> None:
    first = Term(FoldUnderTest(), "s1")
    first.feed(owned())
    first.pass_time(1.4)
    second = Term(first.fold)
    second.pass_time(GATEWAY_SILENCE_S)
    assert second.records == []
    second.pass_time(0.05)
    assert [type(record) for record in second.records] == [End]


@pytest.mark.parametrize("heard_before", [False, True])
def test_a_gateway_that_nobody_misses_has_the_full_time_from_its_next_request_on(heard_before: bool) -> None:
    """However long ago the term began, or the gateway was given up: its request says that it lived just now."""
    term = Term(FoldUnderTest())
    term.pass_time(1.0, *["g1"] if heard_before else [])
    term.pass_time(10.0)
    term.feed(owned())
    term.pass_time(GATEWAY_SILENCE_S)
    assert term.records == []
    term.pass_time(0.05)
    assert [type(record) for record in term.records] == [End]


def test_a_kept_request_outlives_its_gateway_by_the_time_that_it_is_kept() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=KEEP_S))
    term.pass_time(GATEWAY_SILENCE_S + 0.05)
    assert term.records == [reader("g1", reads=False)]
    settle(term)
    assert term.fold.requests[RID].unread_ns is not None
    term.pass_time(KEEP_S - 0.1)
    assert term.records == [] and reasons(term) == [None]
    term.pass_time(0.2)
    assert [type(record) for record in term.records] == [End]
    settle(term)
    assert reasons(term) == ["cancel"]


def test_a_reader_that_joins_in_time_keeps_it_and_the_time_starts_anew_when_it_leaves() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=KEEP_S))
    term.feed(reader("g1", reads=False))
    term.pass_time(KEEP_S - 1.0)
    term.feed(reader("g2", reads=True))
    term.pass_time(3 * KEEP_S, "g2")
    assert term.records == [] and reasons(term) == [None]
    term.feed(reader("g2", reads=False))
    term.pass_time(KEEP_S - 0.1)
    assert term.records == []
    term.pass_time(0.2)
    settle(term)
    assert reasons(term) == ["cancel"]


def test_one_of_several_readers_is_enough() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=KEEP_S))
    term.feed(reader("g2", reads=True))
    term.pass_time(GATEWAY_SILENCE_S + 0.1, "g2")
    assert term.records == [reader("g1", reads=False)]
    settle(term)
    term.pass_time(3 * KEEP_S, "g2")
    assert term.records == [] and reasons(term) == [None]


def test_a_gateway_may_fall_silent_twice_and_each_time_is_a_record_of_its_own() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned(keep_s=KEEP_S))
    for _ in range(2):
        term.pass_time(GATEWAY_SILENCE_S + 0.1)
        settle(term)
        assert not term.fold.requests[RID].readers
        term.feed(reader("g1", reads=True))
    assert len(set(term.message_ids)) == len(term.message_ids) == 2


def test_how_long_it_is_unread_survives_a_take_over() -> None:
    first = Term(FoldUnderTest(), "s1")
    first.feed(owned(keep_s=KEEP_S))
    first.feed(reader("g1", reads=False))
    first.pass_time(KEEP_S - 2.0)
    second = Term(first.fold)
    second.pass_time(1.9)
    assert second.records == []
    second.pass_time(0.2)
    assert [type(record) for record in second.records] == [End]


@pytest.mark.parametrize("with_worker", [False, True])
def test_a_request_that_no_worker_takes_waits_up_to_its_deadline(with_worker: bool) -> None:
    term = Term(FoldUnderTest())
    if with_worker:
        term.join("w1", num_blocks=32)
    soon = term.fold.now_ns + 20 * SECOND_NS
    other_model = msgspec.structs.replace(request(RID), model="elsewhere", deadline_ns=soon)
    term.feed(other_model)
    term.pass_time(19.9, by_s=0.05)
    assert reasons(term) == [None] and term.leader.core.num_waiting == 1
    assert not any(isinstance(record, End) for record in term.records)
    term.pass_time(0.2)
    settle(term)
    assert reasons(term) == ["deadline"] and not term.leader.core.num_waiting


@pytest.mark.parametrize("comes_back", [False, True])
def test_sequences_of_the_only_worker_wait_for_a_new_one_up_to_their_deadline(comes_back: bool) -> None:
    term = Term(FoldUnderTest())
    term.join("w1", num_blocks=32)
    soon = term.fold.now_ns + 20 * SECOND_NS
    term.feed(msgspec.structs.replace(request(RID), deadline_ns=soon))
    (sequence,) = term.fold.requests[RID].sequences
    term.feed(rows("w1", term.fold.epoch_of("w1"), 1, term.fold.row(sequence, 9)))
    assert term.leader.core.num_running == 1
    term.pass_time(2.0)
    assert term.fenced == ["w1"]
    term.feed(Fence(kind="worker", leader="s2", worker="w1"))
    assert (term.leader.core.num_running, term.leader.core.num_waiting) == (0, 1)
    assert "w1" not in term.leader.links
    term.pass_time(10.0)
    if comes_back:
        before = term.num_plans
        term.join("w2", num_blocks=32)
        assert term.num_plans > before and term.leader.core.num_running == 1
        return
    term.pass_time(8.1)
    settle(term)
    assert (sequence.end, sequence.reason) == (1, "deadline")


class Gateways:
    """Gateways that live, die, read and leave at random, under leaders that change; and what must come of it, found by
    looking at each request at each step.

    heard: when the leader last heard of a gateway or, if it never did in its term, first needed to.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.term = Term(FoldUnderTest())
        self.alive = dict.fromkeys(("g0", "g1", "g2"), True)
        self.heard: dict[str, float] = {}
        self.num_requests = 0

    def act(self) -> None:
        """One thing happens."""
        action = self.rng.choice(["request", "flip", "read", "leave", "takeover"])
        gateway = self.rng.choice(sorted(self.alive))
        if action == "flip":
            self.alive[gateway] = not self.alive[gateway]
        elif action == "takeover":
            self.take_over()
        elif action == "request" and self.alive[gateway]:
            self.num_requests += 1
            owner, keep_s = self.rng.choice([gateway, gateway, ""]), self.rng.choice([0.0, 3.0])
            self.term.feed(owned(f"{self.num_requests:032x}", owner, keep_s))
        elif self.num_requests and self.alive[gateway]:
            request_id = f"{self.rng.randint(1, self.num_requests):032x}"
            self.term.feed(Reader(request_id=request_id, gateway=gateway, reads=action == "read"))
        self.heard = dict.fromkeys(self.needed, self.term.now) | self.heard

    def take_over(self) -> None:
        """A new leader, which has heard of nobody yet."""
        self.term = Term(self.term.fold, now=self.term.now)
        self.heard = {}

    @property
    def live(self) -> dict[str, RequestState]:
        """Requests that have not ended, by id."""
        return {request_id: state for request_id, state in self.term.fold.requests.items() if not state.ended}

    @property
    def needed(self) -> list[str]:
        """Gateways whose silence would say something about a live request."""
        gateways = set[str]()
        for state in self.live.values():
            gateways |= state.readers if state.request.keep_s > 0 else {state.request.owner}
        return sorted(gateways - {""})

    def pass_time(self) -> None:
        """A quarter of a second."""
        term = self.term
        term.now += 0.25
        term.fold.now_ns += SECOND_NS // 4
        for gateway, lives in self.alive.items():
            if lives:
                term.hear(gateway)
                self.heard[gateway] = term.now
        live = self.live
        overtime_s = {request_id: self.overtime_s(state) for request_id, state in live.items()}
        term.tick()
        term.fold_appended()
        for request_id, state in live.items():
            over_s = overtime_s[request_id]
            assert not state.ended or (over_s is not None and over_s >= 0), "ended too early"
            assert state.ended or over_s is None or over_s < 1.0, "not ended in time"
        # one that was given up, and is needed no more, is as one that was never heard of
        self.heard = {
            gateway: heard
            for gateway, heard in self.heard.items()
            if term.now - heard <= GATEWAY_SILENCE_S or gateway in self.needed
        }

    def overtime_s(self, state: RequestState) -> float | None:
        """Seconds since when it should have ended, negative before; None if somebody reads it."""
        request = state.request
        if request.keep_s > 0:
            if state.unread_ns is None:
                return None
            return (self.term.fold.now_ns - state.unread_ns) / SECOND_NS - request.keep_s
        return self.term.now - self.heard[request.owner] - GATEWAY_SILENCE_S if request.owner else None


@settings(max_examples=60, deadline=None)
@example(17532416)  # a gateway that was silent for long asks, and is gone again before its first heartbeat
@given(st.integers(0, 2**32))
def test_whatever_gateways_do_each_request_ends_when_its_last_reader_is_gone_and_only_then(seed: int) -> None:
    world = Gateways(seed)
    for _ in range(60):
        world.act()
        for _ in range(world.rng.choice([0, 0, 1, 12])):
            world.pass_time()
    assert len(world.term.leader._lifetimes) == len(world.live)


def test_the_outcome_is_not_the_leaders_to_write_where_a_request_was_abandoned() -> None:
    term = Term(FoldUnderTest())
    term.feed(owned())
    term.pass_time(GATEWAY_SILENCE_S + 0.1)
    term.fold_appended()
    assert not any(isinstance(record, Done) for record in term.records), "detokenizers know all ends"
