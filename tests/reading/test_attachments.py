"""Which deltas are new and which streams attach again: rules 14 and 15 without a network."""

from shared.messages.pipeline import Delta, DeltaBatch
from shared.reading.attachments import (
    ATTACH_TIMEOUT_S,
    NO_RESPONDERS_WAIT_S,
    SILENCE_S,
    Attachments,
    SendAttach,
    SendDetach,
)
from shared.reading.stream import Stream

TICK_S = 0.1


class Reading:
    """Attachments with one stream, a clock, and what was sent."""

    def __init__(self, num_choices: int = 1) -> None:
        self.now = 100.0
        self.attachments = Attachments()
        self.stream = Stream("r1", "s0", num_choices, lambda delta, now: None)
        self.attachments.tick(self.now)
        self.attachments.attach(self.stream, self.now)

    def sent(self) -> list[SendAttach | SendDetach]:
        sent, self.attachments.outgoing = self.attachments.outgoing, []
        return sent

    def asked(self) -> list[str]:
        """Detokenizers asked since the last call, "" for the queue group."""
        return [message.detokenizer for message in self.sent() if isinstance(message, SendAttach)]

    def wait(self, seconds: float) -> None:
        """Let time pass in ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            self.attachments.tick(self.now)

    def batch(self, number: int, *deltas: Delta, source: str = "d1") -> list[tuple[int, int, int]]:
        """(choice, start, stop) of the new deltas of a batch."""
        fresh = self.attachments.on_batch(DeltaBatch(source=source, number=number, deltas=list(deltas)), self.now)
        return [(delta.choice, delta.start, delta.stop) for _, delta in fresh]

    def delta(self, start: int, stop: int, choice: int = 0, end: bool = False, attach: int | None = None) -> Delta:
        number = self.stream.number if attach is None else attach
        reason = "length" if end else None
        return Delta(attach=number, choice=choice, start=start, stop=stop, text="x", end=reason)


def test_a_whole_stream() -> None:
    reading = Reading()
    assert reading.asked() == [""]
    reading.attachments.on_attached(1, "d1", reading.now)
    assert reading.batch(1, reading.delta(0, 1)) == [(0, 0, 1)]
    assert reading.batch(2, reading.delta(1, 3)) == [(0, 1, 3)]
    assert reading.batch(3, reading.delta(3, 4, end=True)) == [(0, 3, 4)]
    assert reading.stream.is_done
    reading.wait(5)
    assert reading.sent() == []
    assert reading.attachments.num_streams == 0


def test_text_before_the_answer_to_the_attach() -> None:
    reading = Reading()
    assert reading.batch(1, reading.delta(0, 1)) == [(0, 0, 1)]
    reading.attachments.on_attached(1, "d1", reading.now)
    assert (reading.stream.source, reading.stream.positions) == ("d1", [1])


def test_rule_14_older_attachments_and_doubles_are_dropped() -> None:
    reading = Reading()
    first = reading.stream.number
    reading.batch(1, reading.delta(0, 2))
    assert reading.batch(2, reading.delta(0, 2)) == []
    reading.attachments.attach_all_again(reading.now)
    assert reading.stream.number != first
    assert reading.batch(3, reading.delta(2, 3, attach=first)) == []
    assert reading.batch(4, reading.delta(2, 3)) == [(0, 2, 3)]


def test_rule_14_a_gap_in_the_numbers() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1))
    reading.sent()
    assert reading.batch(3, reading.delta(2, 3)) == []
    detach, attach, *rest = reading.sent()
    assert isinstance(detach, SendDetach) and isinstance(attach, SendAttach)
    assert attach.stream.positions == [1]
    assert rest == []


def test_rule_14_a_lost_last_batch_shows_in_the_heartbeat() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1))
    reading.sent()
    reading.batch(1)
    assert reading.sent() == []
    reading.batch(2)
    assert reading.asked() == [""]


def test_rule_14_a_first_batch_that_is_not_number_1() -> None:
    reading = Reading()
    reading.attachments.on_attached(1, "d1", reading.now)
    reading.sent()
    assert reading.batch(2) == []
    assert reading.asked() == [""]


def test_rule_14_silence() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1))
    reading.sent()
    reading.wait(SILENCE_S - TICK_S)
    assert reading.sent() == []
    reading.wait(2 * TICK_S)
    assert reading.asked() == [""]


def test_rule_14_heartbeats_keep_a_stream() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1))
    reading.sent()
    for _ in range(20):
        reading.wait(0.25)
        reading.batch(1)
    assert reading.sent() == []


def test_a_pause_of_this_process_is_not_silence() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1))
    reading.sent()
    reading.now += 30
    reading.attachments.tick(reading.now)
    assert reading.sent() == []


def test_a_pause_of_this_process_is_no_reason_to_ask_again() -> None:
    """Thousands of requests at once keep a gateway busy for longer than an answer is waited for; asking anew for all of
    them would make the answers that wait in its socket void."""
    reading = Reading()
    assert reading.asked() == [""]
    reading.now += 2.0
    reading.attachments.tick(reading.now)
    assert reading.asked() == []
    reading.attachments.on_attached(1, "d1", reading.now)
    assert reading.batch(1, reading.delta(0, 1)) == [(0, 0, 1)]


def test_rule_15_straight_to_one_heard_of_lately() -> None:
    reading = Reading()
    reading.sent()
    reading.attachments.on_detokenizer("s0", "d2", reading.now)
    reading.attachments.on_detokenizer("s1", "other shard", reading.now)
    reading.wait(ATTACH_TIMEOUT_S + TICK_S)
    assert reading.asked() == ["d2"]
    reading.wait(ATTACH_TIMEOUT_S + TICK_S)
    assert reading.asked() == [""], "the one just tried is not asked twice in a row"
    reading.wait(5)
    assert set(reading.asked()) == {""}, "it was heard of long ago"


def test_an_answer_that_takes_longer_than_the_first_questions_wait_comes_in_time_for_a_later_one() -> None:
    """On a bus with 300 ms each way, say: every question voids the answers to those before it."""
    reading = Reading()
    answers: list[tuple[float, int]] = []
    while not reading.stream.source and reading.now < 110:
        answers += [
            (reading.now + 0.6, message.number) for message in reading.sent() if isinstance(message, SendAttach)
        ]
        reading.wait(TICK_S)
        for number in [number for due, number in answers if due <= reading.now]:
            reading.attachments.on_attached(number, "d1", reading.now)
        answers = [(due, number) for due, number in answers if due > reading.now]
    assert reading.now < 102
    reading.wait(0.5)
    assert reading.sent() == []


def test_nobody_there() -> None:
    reading = Reading()
    reading.sent()
    reading.attachments.on_no_responders(reading.stream.number, reading.now)
    reading.wait(NO_RESPONDERS_WAIT_S + TICK_S)
    assert reading.asked() == [""]


def test_a_delta_beyond_what_was_read() -> None:
    reading = Reading()
    reading.sent()
    assert reading.batch(1, reading.delta(2, 3)) == []
    assert reading.asked() == [""]


def test_rule_15_a_slow_reader_pauses_and_resumes() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 5))
    reading.attachments.detach(reading.stream)
    reading.attachments.detach(reading.stream)
    assert [type(message) for message in reading.sent()] == [SendAttach, SendDetach]
    assert reading.batch(2, reading.delta(5, 6, attach=1)) == []
    reading.wait(3)
    assert reading.sent() == []
    reading.attachments.attach(reading.stream, reading.now)
    assert reading.asked() == [""]
    assert reading.batch(3, reading.delta(5, 7)) == [(0, 5, 7)]


def test_choices_end_one_by_one() -> None:
    reading = Reading(num_choices=2)
    assert reading.batch(1, reading.delta(0, 2, end=True), reading.delta(0, 1, choice=1)) == [(0, 0, 2), (1, 0, 1)]
    assert reading.batch(2, reading.delta(2, 2, end=True), reading.delta(1, 1, choice=1, end=True)) == [(1, 1, 1)]
    assert reading.stream.is_done


def test_choices_that_are_none() -> None:
    reading = Reading()
    assert reading.batch(1, reading.delta(0, 1, choice=1), reading.delta(0, 1, choice=-1)) == []
    assert reading.batch(2, reading.delta(0, 0, end=True)) == [(0, 0, 0)]


def test_a_malformed_column_is_dropped() -> None:
    reading = Reading()
    delta = Delta(attach=reading.stream.number, choice=0, start=0, stop=1, text="x", token_ids=b"\x01")
    assert reading.batch(1, delta) == []
    assert reading.batch(2, reading.delta(0, 1)) == [(0, 0, 1)]


def test_a_done_stream_does_not_attach() -> None:
    reading = Reading()
    reading.batch(1, reading.delta(0, 1, end=True))
    reading.sent()
    reading.attachments.attach(reading.stream, reading.now)
    reading.attachments.detach(reading.stream)
    reading.attachments.attach_all_again(reading.now)
    assert reading.sent() == []


def test_resuming_elsewhere() -> None:
    """Positions of another reader, as with Last-Event-ID."""
    attachments = Attachments()
    stream = Stream("r1", "s0", 1, lambda delta, now: None, positions=(7, 3))
    attachments.attach(stream, 1.0)
    delta = Delta(attach=stream.number, choice=1, start=3, stop=4, text="x")
    assert attachments.on_batch(DeltaBatch(source="d1", number=1, deltas=[delta]), 1.0) == [(stream, delta)]
    assert stream.positions == [7, 4]


def test_a_source_that_counts_anew() -> None:
    """A detokenizer may forget an inbox that nobody reads from and number it from 1 again."""
    reading = Reading()
    for number in range(1, 6):
        reading.batch(number, reading.delta(number - 1, number))
    reading.sent()
    assert reading.batch(1, reading.delta(5, 6)) == [(0, 5, 6)]
    assert reading.sent() == []
    reading.batch(3, reading.delta(7, 8))
    assert "" in reading.asked()


def test_rule_14_a_detokenizer_that_counts_anew_is_checked_from_its_first_batch_on() -> None:
    reading = Reading()
    reading.attachments.on_attached(1, "d1", reading.now)
    for number in range(1, 6):
        reading.batch(number, reading.delta(number - 1, number))
    reading.sent()
    assert reading.batch(1, reading.delta(5, 6)) == [(0, 5, 6)]
    assert reading.sent() == [], "it has forgotten this inbox; nothing is missing"
    assert reading.batch(3, reading.delta(6, 7)) == [(0, 6, 7)]
    assert reading.asked() == [""], "its second batch was lost"


def test_rule_14_a_heartbeat_of_a_detokenizer_that_counts_anew_shows_a_lost_batch() -> None:
    reading = Reading()
    reading.attachments.on_attached(1, "d1", reading.now)
    for number in range(1, 6):
        reading.batch(number, reading.delta(number - 1, number))
    reading.sent()
    reading.batch(1)
    assert reading.asked() == [""]


def test_streams_of_one_request_have_lanes_of_their_own() -> None:
    """To a detokenizer the newest attachment of an inbox to a request is the only one."""
    reading = Reading()
    second, other = (Stream(name, "s0", 1, lambda delta, now: None) for name in ("r1", "r2"))
    for stream in (second, other):
        reading.attachments.attach(stream, reading.now)
    assert [stream.lane for stream in (reading.stream, second, other)] == [0, 1, 0]
    reading.batch(1, reading.delta(0, 1))
    delta = Delta(attach=second.number, choice=0, start=0, stop=1, text="x")
    batch = DeltaBatch(source="d1", number=1, deltas=[delta])
    assert reading.attachments.on_batch(batch, reading.now, lane=1) == [(second, delta)]
    reading.sent()
    assert reading.attachments.on_batch(DeltaBatch(source="d1", number=3), reading.now, lane=1) == []
    assert [message.stream for message in reading.sent() if isinstance(message, SendAttach)] == [second], (
        "lane 0 is whole"
    )


def test_a_lane_that_was_left_is_taken_again() -> None:
    reading = Reading()
    second = Stream("r1", "s0", 1, lambda delta, now: None)
    reading.attachments.attach(second, reading.now)
    reading.sent()
    reading.attachments.detach(reading.stream)
    (left,) = reading.sent()
    assert isinstance(left, SendDetach) and left.lane == 0
    reading.attachments.attach(reading.stream, reading.now)
    reading.attachments.attach_all_again(reading.now)
    assert sorted((reading.stream.lane, second.lane)) == [0, 1]
    numbers = {message.lane: message.number for message in reading.sent() if isinstance(message, SendDetach)}
    assert set(numbers) == {0, 1}
    for stream in (reading.stream, second):
        assert numbers[stream.lane] < stream.number, "a Detach of a lane ends only what is older"


def test_who_was_heard_lately() -> None:
    reading = Reading()
    reading.attachments.on_detokenizer("s0", "d1", reading.now)
    reading.wait(2)
    reading.attachments.on_detokenizer("s0", "d2", reading.now)
    assert reading.attachments.heard_lately("s0", reading.now) == ["d2"]
    assert reading.attachments.heard_lately("s9", reading.now) == []
