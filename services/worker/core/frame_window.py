"""Frames on their way into the log (protocol rule 4).

Frames are published without waiting and without deduplication; any copy of any of them may be lost, and the fold takes
frame k only after frame k - 1. So a frame is released only

    in step order, and with a copy stored at a higher log sequence than the released copy of the frame before it.

If k is lost and k + 1 is acknowledged, the fold has dropped that copy of k + 1 as a gap, and it is needed again.
"""

from collections import deque
from dataclasses import dataclass, field

MAX_OUTSTANDING = 8
RESEND_AFTER_S = 0.3
QUICK_RESEND_AFTER_S = 0.05


@dataclass(slots=True)
class Frame:
    """One step's encoded Rows. copies: log sequences of the copies of which a PubAck is here."""

    step: int
    data: bytes
    copies: list[int] = field(default_factory=list)


class FrameWindow:
    """The outstanding frames of one epoch, in step order. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self.epoch = 0
        self.refusal: str | None = None
        self._frames: deque[Frame] = deque()
        self._released_copy = 0
        self._sent_s = 0.0

    @property
    def num_outstanding(self) -> int:
        """Frames that may not yet be in the log in their place."""
        return len(self._frames)

    @property
    def num_free(self) -> int:
        """Steps that may be begun before the worker must pause."""
        return max(0, MAX_OUTSTANDING - len(self._frames))

    def open_epoch(self, epoch: int) -> None:
        """A new epoch: the fold takes no frame of an older one any more."""
        self.epoch = epoch
        self._frames.clear()
        self._released_copy = 0

    def add(self, step: int, data: bytes, now_s: float) -> None:
        """A frame that is about to be published for the first time."""
        if not self._frames:
            self._sent_s = now_s
        self._frames.append(Frame(step, data))

    def on_stored(self, epoch: int, step: int, log_sequence: int, now_s: float) -> None:
        """A copy of this frame is stored at log_sequence; acknowledgements come in any order, and more than once."""
        self.refusal = None
        if epoch != self.epoch:
            return
        for frame in self._frames:
            if frame.step == step:
                frame.copies.append(log_sequence)
                break
        self._release(now_s)

    def on_refused(self, reason: str) -> None:
        """The log stores nothing at the moment (full, no leader): frames stay and go out again in a while."""
        self.refusal = reason

    def take_overdue(self, now_s: float) -> list[Frame]:
        """All outstanding frames, in order, if it is time to send them again; else none.

        Late acknowledgements take RESEND_AFTER_S; one for a later frame than the first means that the first was lost.
        """
        if not self._frames:
            return []
        wait_s = QUICK_RESEND_AFTER_S if self._shows_a_loss() else RESEND_AFTER_S
        return self.take_all(now_s) if now_s - self._sent_s > wait_s else []

    def take_all(self, now_s: float) -> list[Frame]:
        """All outstanding frames, in order, to be sent again at once (after a reconnect)."""
        self._sent_s = now_s
        return list(self._frames)

    def _release(self, now_s: float) -> None:
        while self._frames:
            usable = [copy for copy in self._frames[0].copies if copy > self._released_copy]
            if not usable:
                return
            self._released_copy = min(usable)
            self._frames.popleft()
            self._sent_s = now_s

    def _shows_a_loss(self) -> bool:
        first = self._frames[0]
        has_usable_copy = any(copy > self._released_copy for copy in first.copies)
        return not has_usable_copy and any(frame.copies for frame in self._frames if frame is not first)
