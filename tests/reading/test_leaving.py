"""A detokenizer that is told to stop says so, and its readers go elsewhere: at once, and without losing or doubling."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from shared.messages.pipeline import Delta
from shared.reading.attachments import ATTACH_TIMEOUT_S, SendAttach, SendDetach
from tests.reading.test_attachments import Reading


def test_a_source_that_leaves_is_left_at_once_if_there_is_another() -> None:
    reading = Reading()
    reading.attachments.on_attached(1, "d1", reading.now)
    reading.batch(1, reading.delta(0, 2))
    old = reading.stream.number
    reading.sent()
    reading.attachments.on_detokenizer("s0", "d1", reading.now)
    reading.attachments.on_detokenizer("s0", "d1", reading.now, leaving=True)
    assert reading.sent() == [], "without another one it is read on"
    assert reading.batch(2, reading.delta(2, 3)) == [(0, 2, 3)]
    reading.attachments.on_detokenizer("s0", "d2", reading.now)
    reading.attachments.on_detokenizer("s0", "d1", reading.now, leaving=True)
    detach, attach = reading.sent()
    assert isinstance(detach, SendDetach) and detach.number == old
    assert isinstance(attach, SendAttach) and (attach.detokenizer, attach.stream.positions) == ("", [3])
    reading.attachments.on_detokenizer("s0", "d1", reading.now, leaving=True)
    assert reading.sent() == [], "once is enough"
    assert reading.attachments.heard_lately("s0", reading.now) == ["d2"]


def test_the_departure_of_another_detokenizer_moves_nothing() -> None:
    reading = Reading()
    reading.attachments.on_attached(1, "d1", reading.now)
    reading.attachments.on_detokenizer("s0", "d1", reading.now)
    reading.sent()
    reading.attachments.on_detokenizer("s0", "d2", reading.now, leaving=True)
    assert reading.sent() == []


class Pair:
    """Two detokenizers that come and go, and a reader. What they send is on its way for any time, or lost."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.read: list[int] = []
        self.num_folded = 0
        self._serving: dict[str, dict[int, int]] = {"d1": {}, "d2": {}}
        self._numbers = {"d1": 0, "d2": 0}
        self._on_way: dict[str, list[tuple[int, list[Delta]]]] = {"d1": [], "d2": []}
        self._leaving: set[str] = set()

    def token(self, name: str) -> None:
        """Both fold a token, and send what their readers lack."""
        self.num_folded += 1
        for each in self._serving:
            self.send(each)

    def send(self, name: str) -> None:
        """What its readers lack, or the heartbeat that repeats its last number."""
        stop = self.num_folded
        lacking = {number: start for number, start in self._serving[name].items() if start < stop}
        deltas = [self.reading.delta(start, stop, attach=number) for number, start in lacking.items()]
        self._serving[name] = dict.fromkeys(self._serving[name], stop)
        self._numbers[name] += bool(deltas)
        self._on_way[name].append((self._numbers[name], deltas))

    def answer(self, name: str) -> None:
        """What the reader has sent arrives; name is whom the queue group chooses."""
        for message in self.reading.sent():
            if isinstance(message, SendDetach):
                for each in self._serving.values():
                    each.pop(message.number, None)
                continue
            server = message.detokenizer or name
            if message.number == self.reading.stream.number and server not in self._leaving:
                self._serving[server][message.number] = message.stream.positions[0]
                self.reading.attachments.on_attached(message.number, server, self.reading.now)

    def arrive(self, name: str) -> None:
        """The oldest of its batches."""
        if self._on_way[name]:
            number, deltas = self._on_way[name].pop(0)
            for _, start, stop in self.reading.batch(number, *deltas, source=name):
                self.read.extend(range(start, stop))

    def lose(self, name: str) -> None:
        """The oldest of its batches does not arrive."""
        del self._on_way[name][:1]

    def leave(self, name: str) -> None:
        """It says that it leaves."""
        self._leaving.add(name)
        self.reading.attachments.on_detokenizer("s0", name, self.reading.now, leaving=True)

    def come(self, name: str) -> None:
        """It serves (again)."""
        self._leaving.discard(name)
        self.reading.attachments.on_detokenizer("s0", name, self.reading.now)

    def settle(self) -> None:
        """Both serve, and nothing is lost any more."""
        for _ in range(20):
            self.reading.wait(ATTACH_TIMEOUT_S)
            for name in ("d1", "d2"):
                self.come(name)
                self.answer(name)
                self.send(name)
                while self._on_way[name]:
                    self.arrive(name)


STEPS = st.sampled_from([Pair.token, Pair.answer, Pair.arrive, Pair.lose, Pair.leave, Pair.come])


@given(st.lists(st.tuples(STEPS, st.sampled_from(["d1", "d2"])), max_size=80))
def test_whoever_leaves_and_whatever_is_lost_every_token_is_read_once(
    steps: list[tuple[Callable[[Pair, str], None], str]],
) -> None:
    pair = Pair()
    for step, name in steps:
        step(pair, name)
        assert pair.read == list(range(len(pair.read)))
    pair.settle()
    assert pair.read == list(range(pair.num_folded))
