"""Rule 4: frames get into the log in step order without gaps, whatever is lost, repeated or late on the way."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.frame_window import MAX_OUTSTANDING, RESEND_AFTER_S, Frame, FrameWindow

EPOCH = 7


@dataclass
class LossyLog:
    """A stream and the fold behind it: stores what arrives, folds a step only after the one before it."""

    last_seq: int = 100
    folded: int = 0
    acknowledgements: list[tuple[int, int]] = field(default_factory=list)

    def store(self, step: int) -> None:
        self.last_seq += 1
        self.acknowledgements.append((step, self.last_seq))
        if step == self.folded + 1:
            self.folded = step


@dataclass
class Fate:
    """What happens to one publish, and to the acknowledgements that wait."""

    is_lost: bool
    deliver: list[int]
    repeat: bool
    seconds: float


fates = st.builds(
    Fate,
    is_lost=st.booleans(),
    deliver=st.lists(st.integers(0, 7), max_size=3),
    repeat=st.booleans(),
    seconds=st.sampled_from([0.0, 0.01, 0.06, 0.31]),
)


class Run:
    """Drives a window against a lossy log, one fate a publish."""

    def __init__(self, fates: list[Fate]) -> None:
        self.window = FrameWindow()
        self.window.open_epoch(EPOCH)
        self.log = LossyLog()
        self.fates = list(fates)
        self.now_s = 0.0
        self.step = 0

    @property
    def num_released(self) -> int:
        return self.step - self.window.num_outstanding

    def publish(self, step: int) -> None:
        fate = self.fates.pop(0) if self.fates else Fate(False, [0, 0, 0], False, 0.01)
        if not fate.is_lost:
            self.log.store(step)
        self.now_s += fate.seconds
        for index in fate.deliver:
            if self.log.acknowledgements:
                at = index % len(self.log.acknowledgements)
                step_of_ack, seq = self.log.acknowledgements[at]
                if not fate.repeat:
                    del self.log.acknowledgements[at]
                self.window.on_stored(EPOCH, step_of_ack, seq, self.now_s)
                self.check()

    def check(self) -> None:
        assert self.num_released <= self.log.folded, "a frame was given up that the fold had not taken"
        assert self.window.num_outstanding <= MAX_OUTSTANDING

    def turn(self) -> None:
        if self.window.num_free:
            self.step += 1
            self.window.add(self.step, b"", self.now_s)
            self.publish(self.step)
        self.resend()

    def resend(self) -> None:
        for frame in self.window.take_overdue(self.now_s):
            self.publish(frame.step)
            self.check()


@settings(max_examples=300, deadline=None)
@given(st.lists(fates, max_size=60))
def test_rule_04_no_frame_is_released_before_its_place_in_the_log_is_sure(script: list[Fate]) -> None:
    run = Run(script)
    while run.fates:
        run.turn()
        run.now_s += 0.02
    for _ in range(50):
        run.now_s += RESEND_AFTER_S + 0.01
        run.resend()
        if not run.window.num_outstanding:
            break
    assert run.window.num_outstanding == 0
    assert run.log.folded == run.step


def opened(*steps: int) -> FrameWindow:
    window = FrameWindow()
    window.open_epoch(EPOCH)
    for step in steps:
        window.add(step, b"%d" % step, 0.0)
    return window


def steps_of(frames: list[Frame]) -> list[int]:
    return [frame.step for frame in frames]


def test_rule_04_a_later_frame_stored_alone_is_needed_again() -> None:
    window = opened(1, 2)
    window.on_stored(EPOCH, 2, 10, 0.0)  # frame 1 was lost: the fold dropped this copy of 2 as a gap
    assert window.num_outstanding == 2
    window.on_stored(EPOCH, 1, 11, 0.1)
    assert window.num_outstanding == 1, "the only copy of 2 lies before the released copy of 1"
    window.on_stored(EPOCH, 2, 12, 0.2)
    assert window.num_outstanding == 0


def test_rule_04_acknowledgements_may_come_late_and_out_of_order() -> None:
    window = opened(1, 2)
    window.on_stored(EPOCH, 2, 11, 0.0)
    window.on_stored(EPOCH, 1, 10, 0.0)
    assert window.num_outstanding == 0


def test_rule_04_resends_all_in_order_after_a_while_and_quickly_when_a_loss_shows() -> None:
    window = opened(1, 2, 3)
    assert window.take_overdue(0.29) == []
    assert steps_of(window.take_overdue(0.31)) == [1, 2, 3]
    window.on_stored(EPOCH, 3, 10, 0.32)
    assert window.take_overdue(0.33) == []
    assert steps_of(window.take_overdue(0.37)) == [1, 2, 3]


def test_rule_04_resends_at_once_after_a_reconnect() -> None:
    assert steps_of(opened(4, 5).take_all(0.0)) == [4, 5]


def test_rule_04_pauses_at_eight_outstanding() -> None:
    window = opened(*range(1, 8))
    assert window.num_free == 1
    window.add(8, b"", 0.0)
    assert window.num_free == 0


def test_rule_04_a_refusing_log_keeps_the_frames_and_says_so() -> None:
    window = opened(1)
    window.on_refused("maximum bytes exceeded")
    assert window.refusal == "maximum bytes exceeded"
    assert window.num_outstanding == 1
    assert steps_of(window.take_overdue(0.31)) == [1]
    window.on_stored(EPOCH, 1, 5, 0.4)
    assert window.refusal is None
    assert window.num_outstanding == 0


def test_rule_04_a_new_epoch_drops_the_frames_of_the_old_one() -> None:
    window = opened(1, 2)
    window.open_epoch(EPOCH + 1)
    assert window.num_outstanding == 0
    window.add(1, b"", 1.0)
    window.on_stored(EPOCH, 1, 50, 1.0)
    assert window.num_outstanding == 1, "an acknowledgement of the old epoch's step 1"
    window.on_stored(EPOCH + 1, 1, 51, 1.0)
    assert window.num_outstanding == 0
