"""One attachment of an inbox to a request at a time, however its messages overtake each other."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from services.detokenizer.core.attachments import REMEMBER_ENDED_S, Attachment, Attachments
from shared.messages.control import Attach, Detach

RID = "a" * 32
INBOX = "_INBOX.client.1"


def attach(number: int, inbox: str = INBOX) -> Attach:
    return Attach(request_id=RID, inbox=inbox, number=number)


def detach(number: int, inbox: str = INBOX) -> Detach:
    return Detach(request_id=RID, inbox=inbox, number=number)


class Detokenizer:
    """The attachments of one detokenizer, fed as the desk feeds them."""

    def __init__(self) -> None:
        self.attachments = Attachments()

    def deliver(self, message: Attach | Detach, now: float = 0.0) -> None:
        if isinstance(message, Detach):
            self.attachments.detach(message, now)
        elif not self.attachments.is_outdated(message):
            self.attachments.add(Attachment(message, now, []))

    @property
    def numbers(self) -> list[int]:
        return [attachment.number for attachment in self.attachments]


def test_rule_15_a_detach_ends_all_older_attachments_of_its_inbox_and_no_other() -> None:
    detokenizer = Detokenizer()
    for message in (attach(3), attach(4, "_INBOX.other.1"), detach(2), detach(5, "_INBOX.third.1")):
        detokenizer.deliver(message)
    assert sorted(detokenizer.numbers) == [3, 4]
    detokenizer.deliver(detach(3))
    assert detokenizer.numbers == [4]


def test_rule_15_an_attach_that_was_overtaken_does_not_come_back() -> None:
    detokenizer = Detokenizer()
    detokenizer.deliver(detach(7))
    detokenizer.deliver(attach(7))
    assert detokenizer.numbers == []
    detokenizer.deliver(attach(9))
    detokenizer.deliver(attach(8))
    assert detokenizer.numbers == [9], "the newest number stands"


def test_what_was_ended_is_forgotten_after_a_while() -> None:
    detokenizer = Detokenizer()
    detokenizer.deliver(detach(7), now=1.0)
    detokenizer.deliver(detach(5, "_INBOX.other.1"), now=2.0)
    detokenizer.attachments.forget_ended(1.5 + REMEMBER_ENDED_S)
    detokenizer.deliver(attach(7))
    detokenizer.deliver(attach(5, "_INBOX.other.1"))
    assert detokenizer.numbers == [7]


NUM_DETOKENIZERS = 3
Attempt = tuple[int, int]  # who sends it, and which detokenizer the queue group gives it to


@given(
    attempts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, NUM_DETOKENIZERS - 1)), min_size=1, max_size=8),
    order=st.lists(st.integers(0, 1000)),
)
def test_rule_15_never_two_detokenizers_serve_one_inbox(attempts: list[Attempt], order: list[int]) -> None:
    """Each attempt to attach, by whichever tokenizer, first ends the older ones everywhere. A link between a sender
    and a detokenizer keeps its order; between links anything may happen."""
    detokenizers = [Detokenizer() for _ in range(NUM_DETOKENIZERS)]
    links: dict[tuple[int, int], deque[Attach | Detach]] = {}
    for number, (sender, chosen) in enumerate(attempts, start=1):
        for target in range(NUM_DETOKENIZERS):
            link = links.setdefault((sender, target), deque())
            link.append(detach(number - 1))
            if target == chosen:
                link.append(attach(number))
    picks = iter(order)
    while waiting := [(target, link) for (_, target), link in links.items() if link]:
        target, link = waiting[next(picks, 0) % len(waiting)]
        detokenizers[target].deliver(link.popleft())
    serving = [number for detokenizer in detokenizers for number in detokenizer.numbers]
    assert serving == [len(attempts)]
