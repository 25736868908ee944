"""What the log hears of this gateway's readers, in every order of clients that come and go."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.gateway.core.readership import REMEMBER_LEFT_S, Notice, Readership

RID = "a" * 32


def notices(readership: Readership) -> list[bool]:
    """Write what is due, as if the log answered at once."""
    written = []
    while due := readership.take_due():
        for notice in due:
            readership.on_told(notice)
            written.append(notice.reads)
    return written


def test_the_owner_tells_only_that_it_has_left() -> None:
    readership = Readership()
    readership.join(RID, "s0", is_owner=True)
    readership.join(RID, "s0", is_owner=True)
    assert notices(readership) == []
    readership.leave(RID, 1.0, is_done=False)
    assert notices(readership) == []
    readership.leave(RID, 2.0, is_done=False)
    assert notices(readership) == [False]
    readership.join(RID, "s0", is_owner=True)
    assert notices(readership) == [True], "the log has heard that it left"


def test_others_tell_that_they_read() -> None:
    readership = Readership()
    readership.join(RID, "s0", is_owner=False)
    assert notices(readership) == [True]
    readership.leave(RID, 1.0, is_done=True)
    assert notices(readership) == [], "what has ended needs no reader"


def test_a_request_whose_client_went_before_it_was_accepted() -> None:
    readership = Readership()
    readership.disown(RID, "s0", 1.0)
    assert notices(readership) == [False]
    readership.join(RID, "s0", is_owner=True)
    readership.disown(RID, "s0", 1.0)
    assert notices(readership) == [True]


def test_after_an_absence_all_readers_are_told_again() -> None:
    readership = Readership()
    readership.join(RID, "s0", is_owner=True)
    readership.join("b" * 32, "s0", is_owner=False)
    readership.leave("b" * 32, 1.0, is_done=False)
    notices(readership)
    readership.tell_again()
    assert readership.take_due() == [Notice(RID, "s0", True)]


def test_a_failed_record_is_due_again() -> None:
    readership = Readership()
    readership.join(RID, "s0", is_owner=False)
    (notice,) = readership.take_due()
    assert readership.take_due() == []
    readership.on_failed(notice)
    assert readership.take_due() == [notice]


def test_what_was_left_long_ago_is_forgotten() -> None:
    readership = Readership()
    readership.join(RID, "s0", is_owner=True)
    readership.leave(RID, 1.0, is_done=False)
    notices(readership)
    readership.forget_left(1.0 + REMEMBER_LEFT_S)
    readership.join(RID, "s0", is_owner=True)
    assert notices(readership) == [True]
    readership.leave(RID, 1.0, is_done=False)
    notices(readership)
    readership.forget_left(2.0 + REMEMBER_LEFT_S)
    assert not readership._readings


class ReadersOfOneRequest(RuleBasedStateMachine):
    """The log's view follows the clients', whenever no record is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.readership = Readership()
        self.num_readers = 0
        self.log_says = True  # the request names this gateway as its owner
        self.on_their_way: list[Notice] = []

    @rule()
    def join(self) -> None:
        self.readership.join(RID, "s0", is_owner=True)
        self.num_readers += 1

    @rule()
    def leave(self) -> None:
        if self.num_readers:
            self.num_readers -= 1
            self.readership.leave(RID, 0.0, is_done=False)

    @rule()
    def given_up_by_the_leader(self) -> None:
        if self.num_readers and not self.on_their_way:
            self.log_says = False
            self.readership.tell_again()

    @rule()
    def send(self) -> None:
        self.on_their_way += self.readership.take_due()
        assert len(self.on_their_way) <= 1, "records of one request must stay in order"

    @rule(is_stored=st.booleans())
    def arrive(self, is_stored: bool) -> None:
        for notice in self.on_their_way:
            if is_stored:
                self.log_says = notice.reads
                self.readership.on_told(notice)
            else:
                self.readership.on_failed(notice)
        self.on_their_way.clear()

    @invariant()
    def the_log_is_right_once_all_is_told(self) -> None:
        if not self.on_their_way and RID in self.readership._readings and not self._is_due():
            assert self.log_says or not self.num_readers

    def _is_due(self) -> bool:
        return self.readership._readings[RID].is_due


TestReadersOfOneRequest = ReadersOfOneRequest.TestCase
TestReadersOfOneRequest.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
