"""One request whose text is being read."""

from collections.abc import Callable, Iterable

from shared.messages.pipeline import Delta

OnDelta = Callable[[Delta, float], None]


class Stream:
    """How far the text of one request has been read, and by which attachment.

    positions: tokens read so far, per choice. ended: choices whose last delta has come. on_delta(delta, now) is called
    for each new delta, in order of its choice's positions, never twice for a position.
    number: the newest attach number, 0 while detached. lane: the part of the inbox that it reads from.
    source: the detokenizer that answered it, "" while asking.
    tried: the detokenizer asked directly by the newest attempt, "" for the queue group. num_unanswered: attempts in a
    row that nobody answered in time.
    """

    __slots__ = (
        "asked_at",
        "ended",
        "lane",
        "num_unanswered",
        "number",
        "on_delta",
        "positions",
        "request_id",
        "shard",
        "source",
        "tried",
    )

    def __init__(
        self, request_id: str, shard: str, num_choices: int, on_delta: OnDelta, positions: Iterable[int] = ()
    ) -> None:
        self.request_id = request_id
        self.shard = shard
        self.on_delta = on_delta
        self.positions = list(positions) or [0] * num_choices
        self.ended = [False] * len(self.positions)
        self.number = 0
        self.lane = 0
        self.source = ""
        self.tried = ""
        self.num_unanswered = 0
        self.asked_at = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the last delta of every choice has come."""
        return all(self.ended)
