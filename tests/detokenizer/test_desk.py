"""The detokenizer's decisions over a fold that the test feeds."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.detokenizer.core.desk import DONE_DELAY_S, UNKNOWN_S, Desk
from shared.log import snapshot
from shared.log.fold import KEEP_FINISHED_NS
from shared.messages.control import Attach, Detach
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta, Done, End, EndReason, Fence
from tests.detokenizer.bytes_tokenizer import EOS, bytes_vocabulary
from tests.log.records import FoldUnderTest, request, rows

VOCABULARY = bytes_vocabulary()
RID = "a" * 32


class Bench:
    """A desk on a fold; what it sends and appends is collected, what it appends is folded too."""

    def __init__(self) -> None:
        self.fold = FoldUnderTest()
        self.fold.feed(Fence(kind="takeover", leader="s1"))
        self.desk = Desk(self.fold, lambda request: VOCABULARY)
        self.sent: list[Delta] = []
        self.records: list[End | Done] = []
        self.now = 0.0
        self._step = 0

    def collect(self) -> None:
        outbox = self.desk.take_outbox()
        self.sent += [delta for _, delta in outbox.deltas]
        for record, _ in outbox.records:
            self.records.append(record)
            self.feed(record)

    def feed(self, record: object) -> None:
        change = self.fold.feed(record)  # type: ignore[arg-type]
        self.desk.changed(change.sequences, self.now)
        self.collect()

    def tokens(self, *token_ids: int, choice: int = 0, request_id: str = RID) -> None:
        """One frame a token."""
        for token_id in token_ids:
            self._step += 1
            sequence = self.fold.requests[request_id].sequences[choice]
            self.feed(rows("w1", self.fold.takeover, self._step, self.fold.row(sequence, token_id)))

    def attach(self, positions: Sequence[int] = (), number: int = 1, inbox: str = "_INBOX.g.1") -> None:
        self.desk.attach(Attach(request_id=RID, inbox=inbox, number=number, positions=tuple(positions)), self.now)
        self.collect()

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.sent if delta.choice == choice)

    def token_ids(self, choice: int = 0) -> list[int]:
        return [i for delta in self.sent if delta.choice == choice for i in unpack_tokens(delta.token_ids)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def accept(bench: Bench, **sampling: object) -> None:
    bench.feed(request(RID, **({"max_tokens": 100, "eos_token_ids": (EOS,)} | sampling)))


def test_a_reader_gets_each_token_once_with_its_position(bench: Bench) -> None:
    accept(bench)
    bench.attach()
    bench.tokens(*b"abc")
    assert [(delta.start, delta.stop, delta.text, delta.attach) for delta in bench.sent] == [
        (0, 1, "a", 1),
        (1, 2, "b", 1),
        (2, 3, "c", 1),
    ]


def test_rule_15_a_reader_that_comes_late_gets_all_it_lacks_at_once(bench: Bench) -> None:
    accept(bench)
    bench.tokens(*b"hello")
    bench.attach([2])
    assert [(delta.start, delta.stop, delta.text) for delta in bench.sent] == [(2, 5, "llo")]


def test_rule_15_a_fold_behind_the_readers_position_waits(bench: Bench) -> None:
    accept(bench)
    bench.attach([3])
    bench.tokens(*b"hel")
    assert not bench.sent
    bench.tokens(*b"lo")
    assert bench.text() == "lo"


def test_rule_15_the_newest_attach_of_an_inbox_stands_and_others_read_along(bench: Bench) -> None:
    accept(bench)
    bench.attach(number=1)
    bench.attach(number=2)
    bench.attach(number=3, inbox="_INBOX.other.1")
    bench.tokens(ord("x"))
    assert sorted(delta.attach for delta in bench.sent) == [2, 3]
    bench.desk.detach(Detach(request_id=RID, number=2), bench.now)
    bench.tokens(ord("y"))
    assert [delta.attach for delta in bench.sent[2:]] == [3]


def test_rule_14_half_characters_wait_and_never_come_twice(bench: Bench) -> None:
    accept(bench)
    bench.attach()
    bench.tokens(*"é🙂".encode())
    assert [delta.text for delta in bench.sent] == ["", "é", "", "", "", "🙂"]


def test_eos_ends_the_choice_and_the_reader_writes_the_outcome(bench: Bench) -> None:
    accept(bench)
    bench.attach()
    bench.tokens(ord("x"), EOS)
    assert bench.sent[-1].end == "eos" and bench.text() == "x"
    assert bench.records == [Done(request_id=RID, positions=(2,), reasons=("eos",))]


def test_rule_06_a_stop_string_ends_it_in_the_log_and_never_leaks(bench: Bench) -> None:
    accept(bench, stop=("END",))
    bench.attach()
    bench.tokens(*b"fooENDbar")
    assert bench.text() == "foo" and bench.sent[-1].end == "stop_string" and bench.sent[-1].stop_reason == "END"
    assert bench.records[0] == End(request_id=RID, choice=0, reason="stop_string", position=6)
    assert bench.records[1] == Done(request_id=RID, positions=(6,), reasons=("stop_string",))
    assert len(bench.records) == 2
    assert bench.fold.requests[RID].sequences[0].end == 6


def test_rule_15_stop_strings_are_found_with_nobody_attached(bench: Bench) -> None:
    accept(bench, stop=("END",))
    bench.tokens(*b"fooENDb")
    assert bench.records == [End(request_id=RID, choice=0, reason="stop_string", position=6)]
    bench.now += DONE_DELAY_S
    bench.desk.tick(bench.now)
    bench.collect()
    assert bench.records[-1] == Done(request_id=RID, positions=(6,), reasons=("stop_string",))


def test_rule_07_without_a_reader_the_outcome_is_written_later(bench: Bench) -> None:
    accept(bench, max_tokens=1)
    bench.tokens(ord("x"))
    bench.desk.tick(bench.now + DONE_DELAY_S / 2)
    bench.collect()
    assert not bench.records
    bench.desk.tick(bench.now + DONE_DELAY_S)
    bench.collect()
    assert bench.records == [Done(request_id=RID, positions=(1,), reasons=("length",))]
    bench.desk.tick(bench.now + 3 * DONE_DELAY_S)
    bench.collect()
    assert len(bench.records) == 1


def test_rule_07_an_outcome_that_did_not_reach_the_log_is_written_again(bench: Bench) -> None:
    accept(bench, max_tokens=1)
    bench.attach()
    bench.fold.feed(rows("w1", bench.fold.takeover, 1, bench.fold.row(bench.fold.requests[RID].sequences[0], 1)))
    bench.desk.changed(bench.fold.requests[RID].sequences, bench.now)
    assert len(bench.desk.take_outbox().records) == 1, "written, and lost on the way"
    bench.desk.tick(bench.now + DONE_DELAY_S)
    assert len(bench.desk.take_outbox().records) == 1


def test_rule_16_the_outcome_waits_for_every_choice(bench: Bench) -> None:
    accept(bench, n=2, max_tokens=2)
    bench.attach()
    bench.tokens(1, 2, choice=0)
    assert not bench.records
    bench.tokens(3, 4, choice=1)
    assert bench.records == [Done(request_id=RID, positions=(2, 2), reasons=("length", "length"))]
    assert bench.token_ids(0) == [1, 2] and bench.token_ids(1) == [3, 4]


@pytest.mark.parametrize(
    "reason, code", [("error", "engine_error"), ("deadline", "deadline_exceeded"), ("quarantined", "quarantined")]
)
def test_failures_reach_the_reader(bench: Bench, reason: str, code: str) -> None:
    accept(bench)
    bench.attach()
    bench.tokens(*b"ab")
    bench.feed(End(request_id=RID, reason=reason))  # type: ignore[arg-type]
    last = bench.sent[-1]
    assert (last.start, last.stop, last.end) == (2, 2, reason) and last.error and last.error.code == code


def test_a_cancelled_request_ends_at_the_folded_position(bench: Bench) -> None:
    accept(bench)
    bench.attach()
    bench.tokens(*b"ab")
    bench.feed(End(request_id=RID, reason="cancel"))
    bench.tokens(*b"c")
    assert bench.text() == "ab" and bench.sent[-1].end == "cancel" and bench.sent[-1].error is None


def test_readers_of_what_does_not_exist_are_told(bench: Bench) -> None:
    bench.attach()
    bench.desk.tick(bench.now + UNKNOWN_S / 2)
    bench.collect()
    assert not bench.sent
    bench.desk.tick(bench.now + UNKNOWN_S + 1)
    bench.collect()
    assert bench.sent[0].error is not None and bench.sent[0].error.code == "request_not_found"
    assert not len(bench.desk.attachments)


def test_a_reader_of_several_choices_is_told_whichever_it_still_reads(bench: Bench) -> None:
    bench.attach([7, 0, 3])
    bench.desk.tick(bench.now + UNKNOWN_S + 1)
    bench.collect()
    assert [(delta.choice, delta.start, delta.stop) for delta in bench.sent] == [(0, 7, 7), (1, 0, 0), (2, 3, 3)]
    assert all(delta.error is not None for delta in bench.sent)


def test_nobody_is_told_that_a_request_does_not_exist_while_the_fold_is_behind(bench: Bench) -> None:
    bench.attach()
    bench.desk.tick(bench.now + UNKNOWN_S + 1, live=False)
    bench.desk.tick(bench.now + UNKNOWN_S + 2)
    bench.collect()
    assert not bench.sent and len(bench.desk.attachments) == 1
    bench.desk.tick(bench.now + 2 * UNKNOWN_S + 2)
    bench.collect()
    assert bench.sent[0].error is not None


@pytest.mark.parametrize("reason", ["cancel", "deadline", "error"])
def test_a_reader_beyond_the_end_is_told_of_the_end(bench: Bench, reason: EndReason) -> None:
    accept(bench)
    bench.tokens(*b"ab")
    bench.attach([5])
    assert not bench.sent, "it may be ahead of this fold"
    bench.feed(End(request_id=RID, reason=reason))
    assert [(delta.start, delta.stop, delta.text, delta.end) for delta in bench.sent] == [(5, 5, "", reason)]
    assert not len(bench.desk.attachments)


def test_a_reader_may_come_before_its_request_is_folded(bench: Bench) -> None:
    bench.attach()
    accept(bench)
    bench.tokens(*b"x")
    assert bench.text() == "x"


def test_readers_of_forgotten_requests_are_told(bench: Bench) -> None:
    accept(bench, max_tokens=1)
    bench.attach()
    bench.tokens(ord("x"))
    bench.fold.now_ns += KEEP_FINISHED_NS + 1
    bench.feed(Fence(kind="keep", leader="s1"))
    bench.sent.clear()
    bench.attach([1])
    assert bench.sent[0].end == "error"
    bench.desk.forget_retired()


@given(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.lists(st.integers(0, 60), max_size=6),
    st.lists(st.text(st.sampled_from("ab🙂é "), min_size=1, max_size=3), max_size=2),
)
def test_rule_14_any_reader_at_any_moment_reads_the_same_text(text: str, moments: list[int], stops: list[str]) -> None:
    """Readers come, go and resume where they were, over snapshots of the fold too; each has one and the same text."""
    bench = Bench()
    accept(bench, stop=tuple(stops), max_tokens=1000)
    bench.attach(number=1)
    positions = 0
    resumed: list[Delta] = []
    for index, byte in enumerate(text.encode()):
        if bench.fold.requests[RID].ended:
            break
        bench.tokens(byte)
        if index in moments:
            fresh = Bench()
            snapshot.restore(fresh.fold, snapshot.encode(snapshot.capture(bench.fold)))
            fresh.desk.reloaded(0.0)
            fresh.desk.take_outbox()
            fresh.attach([positions], number=2)
            resumed += fresh.sent
            if fresh.sent:
                positions = fresh.sent[-1].stop
    final = Bench()
    snapshot.restore(final.fold, snapshot.encode(snapshot.capture(bench.fold)))
    final.attach([positions])
    assert "".join(delta.text for delta in [*resumed, *final.sent]) == bench.text()
    assert not any(stop in bench.text() for stop in stops)
