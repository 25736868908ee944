"""Which deltas are new, and which streams must attach again: rules 14 and 15 of the protocol, without a network.

A stream attaches through the detokenizers' queue group; when no answer comes, straight to one heard of lately, since
a stopped process stays in its queue group. It attaches again from its own positions after a gap in the numbers of its
source, after its source's silence, when its source says that it leaves, and when a delta starts beyond what was read.
Deltas of older attachments and positions that were read already are dropped, so that text is never doubled.

To a detokenizer the newest attachment of an inbox to a request is the only one. Where several streams of this process
read one request, each of them therefore has a lane of its own: lane 0 is the inbox itself, which batches the text of
nearly all requests; the others are subjects below it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.messages.pipeline import Delta, DeltaBatch
from shared.reading.stream import Stream

SILENCE_S = 0.8
ATTACH_TIMEOUT_S = 0.4
MAX_ATTACH_TIMEOUT_S = 3.2
NO_RESPONDERS_WAIT_S = 0.1
HEARD_LATELY_S = 1.0
PAUSE_S = 0.4
TOKEN_BYTES = 4
FORGET_SOURCE_S = 3600.0
FORGET_DETOKENIZER_S = 60.0


@dataclass(slots=True)
class SendAttach:
    """Send an Attach with the stream's positions under this number; detokenizer "" means the queue group."""

    stream: Stream
    number: int
    detokenizer: str


@dataclass(slots=True)
class SendDetach:
    """Tell detokenizers that the attachments of this lane up to this one have no reader any more."""

    shard: str
    request_id: str
    number: int
    lane: int


@dataclass(slots=True)
class Source:
    """One detokenizer incarnation that sends to a lane. number: its newest batch."""

    number: int = 0
    heard_at: float = 0.0
    streams: dict[int, Stream] = field(default_factory=dict)


class Attachments:
    """All streams of one inbox. Every method takes the time in seconds; what is to be sent gathers in `outgoing`.

    number: attach numbers count from the one after it. Random, so that no two readers of a request share a number.
    """

    def __init__(self, number: int = 0) -> None:
        self.outgoing: list[SendAttach | SendDetach] = []
        self.num_reattached = 0
        self._last_number = number
        self._streams: dict[int, Stream] = {}
        self._asking: dict[int, Stream] = {}
        self._lanes: dict[str, set[int]] = {}
        self._sources: dict[tuple[str, int], Source] = {}
        self._detokenizers: dict[str, dict[str, float]] = {}
        self._ticked_at = 0.0

    @property
    def num_streams(self) -> int:
        """Streams that are attached or asking to be."""
        return len(self._streams)

    # ---- streams come and go

    def attach(self, stream: Stream, now: float) -> None:
        """Begin or resume reading from the stream's positions. Does nothing for a stream that is done."""
        if not stream.is_done:
            self._ask(stream, "", now)

    def detach(self, stream: Stream) -> None:
        """Stop reading; attach resumes. Harmless when repeated."""
        if stream.number and not stream.is_done:
            self._send_detach(stream)
        self._forget(stream)

    def attach_all_again(self, now: float) -> None:
        """Whatever was sent to this inbox may be lost, as after a reconnection."""
        self._attach_again(list(self._streams.values()), now)

    # ---- what comes in

    def on_attached(self, number: int, detokenizer: str, now: float) -> None:
        """A detokenizer serves this attachment."""
        stream = self._asking.get(number)
        if stream is not None:
            self._serve(stream, detokenizer, now)

    def on_no_responders(self, number: int, now: float) -> None:
        """Nobody listens where this attachment was asked for: try again soon."""
        stream = self._asking.get(number)
        if stream is not None:
            stream.num_unanswered = 0
            stream.asked_at = min(stream.asked_at, now - ATTACH_TIMEOUT_S + NO_RESPONDERS_WAIT_S)

    def on_detokenizer(self, shard: str, detokenizer: str, now: float, *, leaving: bool = False) -> None:
        """A heartbeat of a detokenizer. What one that is leaving serves goes elsewhere, as soon as there is another."""
        known = self._detokenizers.setdefault(shard, {})
        if not leaving:
            known[detokenizer] = now
            return
        known.pop(detokenizer, None)
        if self.heard_lately(shard, now):
            sources = [source for (name, _), source in self._sources.items() if name == detokenizer]
            self._attach_again([stream for source in sources for stream in source.streams.values()], now)

    def heard_lately(self, shard: str, now: float) -> list[str]:
        """Detokenizers of the shard whose heartbeat came a moment ago."""
        return [
            name for name, heard_at in self._detokenizers.get(shard, {}).items() if now - heard_at <= HEARD_LATELY_S
        ]

    def on_batch(self, batch: DeltaBatch, now: float, lane: int = 0) -> list[tuple[Stream, Delta]]:
        """The new deltas, in order, each with its stream."""
        source = self._source(batch.source, lane)
        source.heard_at = now
        newest = source.number if batch.number >= source.number else 0  # it has forgotten this inbox and counts anew
        has_gap = batch.number > (newest + 1 if batch.deltas else newest)
        source.number = batch.number
        fresh = []
        streams = self._streams
        for delta in batch.deltas:
            stream = streams.get(delta.attach)
            if stream is not None and self._advance(stream, delta, batch.source, now):
                fresh.append((stream, delta))
        if has_gap:
            self._attach_again(list(source.streams.values()), now)
        return fresh

    def _advance(self, stream: Stream, delta: Delta, source: str, now: float) -> bool:
        """Whether the delta continues what was read; the stream then stands behind it."""
        choice, positions = delta.choice, stream.positions
        if not 0 <= choice < len(positions) or stream.ended[choice]:
            return False
        if len(delta.token_ids) % TOKEN_BYTES:
            return False  # no column of int32: not from a detokenizer of ours
        position, start, stop = positions[choice], delta.start, delta.stop
        if start != position or stop < start:
            if start > position:
                self._attach_again([stream], now)
            return False
        if not stream.source:
            self._serve(stream, source, now)
        positions[choice] = stop
        if delta.end is not None:
            stream.ended[choice] = True
            if stream.is_done:
                self._forget(stream)
        return True

    # ---- time

    def tick(self, now: float) -> None:
        """Call some ten times a second: repeats unanswered attaches and leaves silent detokenizers."""
        if now - self._ticked_at > PAUSE_S:  # this process itself stood still: nobody else is to blame
            for source in self._sources.values():
                source.heard_at = now
            for stream in self._asking.values():
                stream.asked_at = now
        self._ticked_at = now
        for stream in list(self._asking.values()):
            if now - stream.asked_at >= _patience_s(stream.num_unanswered):
                stream.num_unanswered += 1
                self._ask(stream, self._choose_directly(stream, now), now)
        for name, source in list(self._sources.items()):
            silence = now - source.heard_at
            if source.streams and silence > SILENCE_S:
                self._attach_again(list(source.streams.values()), now)
            elif not source.streams and silence > FORGET_SOURCE_S:
                del self._sources[name]

    def _choose_directly(self, stream: Stream, now: float) -> str:
        """A detokenizer heard of lately other than the one just tried; "" (the queue group) if there is none."""
        known = self._detokenizers.get(stream.shard, {})
        lately = [name for name in self.heard_lately(stream.shard, now) if name != stream.tried]
        for name in [name for name, heard_at in known.items() if now - heard_at > FORGET_DETOKENIZER_S]:
            del known[name]
        return lately[stream.number % len(lately)] if lately else ""

    # ---- bookkeeping

    def _attach_again(self, streams: Iterable[Stream], now: float) -> None:
        for stream in streams:
            self.num_reattached += 1
            self._ask(stream, "", now)

    def _ask(self, stream: Stream, detokenizer: str, now: float) -> None:
        if stream.number:
            self._send_detach(stream)
            self._forget(stream)
        self._last_number += 1
        stream.number = self._last_number
        stream.lane = self._take_lane(stream.request_id)
        stream.asked_at = now
        stream.tried = detokenizer
        self._streams[stream.number] = self._asking[stream.number] = stream
        self.outgoing.append(SendAttach(stream, stream.number, detokenizer))

    def _send_detach(self, stream: Stream) -> None:
        self.outgoing.append(SendDetach(stream.shard, stream.request_id, stream.number, stream.lane))

    def _serve(self, stream: Stream, detokenizer: str, now: float) -> None:
        del self._asking[stream.number]
        stream.num_unanswered = 0
        stream.source = detokenizer
        source = self._source(detokenizer, stream.lane)
        source.heard_at = max(source.heard_at, now)
        source.streams[stream.number] = stream

    def _source(self, detokenizer: str, lane: int) -> Source:
        source = self._sources.get((detokenizer, lane))
        if source is None:
            source = self._sources[detokenizer, lane] = Source()
        return source

    def _forget(self, stream: Stream) -> None:
        number, stream.number = stream.number, 0
        if self._streams.pop(number, None) is not None:
            self._give_lane_back(stream)
        self._asking.pop(number, None)
        source = self._sources.get((stream.source, stream.lane))
        if source is not None:
            source.streams.pop(number, None)
        stream.source = ""

    def _take_lane(self, request_id: str) -> int:
        taken = self._lanes.setdefault(request_id, set())
        lane = next(lane for lane in range(len(taken) + 1) if lane not in taken)
        taken.add(lane)
        return lane

    def _give_lane_back(self, stream: Stream) -> None:
        taken = self._lanes[stream.request_id]
        taken.discard(stream.lane)
        if not taken:
            del self._lanes[stream.request_id]


def _patience_s(num_unanswered: int) -> float:
    """How long an answer is waited for: twice as long each time from the third on, since a new question makes the
    answers to all older ones void, and on a slow way each would come just too late."""
    return min(ATTACH_TIMEOUT_S * 2.0 ** max(0, num_unanswered - 1), MAX_ATTACH_TIMEOUT_S)
