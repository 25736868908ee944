"""The reading end of a process: one inbox on the bus for the text of all its requests."""

import asyncio
import functools
import secrets
import time
from collections.abc import Callable

from shared import subjects
from shared.bus.client import Bus, Subscription
from shared.bus.requests import NO_RESPONDERS
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import Attach, Attached, Detach, DetokenizerHeartbeat
from shared.messages.pipeline import DeltaBatch
from shared.reading.attachments import Attachments, SendAttach
from shared.reading.stream import Stream

TICK_S = 0.1
NUMBER_BITS = 62

_decode_batch = decoder(DeltaBatch)
_decode_attached = decoder(Attached)
_decode_heartbeat = decoder(DetokenizerHeartbeat)


class StreamHub:
    """Attaches streams and hands each new delta to its stream's on_delta as it arrives.

    num_malformed: messages that could not be decoded and were dropped.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_malformed = 0
        self.attachments = Attachments(secrets.randbits(NUMBER_BITS))
        self._bus = bus
        self._clock = clock
        self._inbox = bus.new_inbox()
        self._replies = bus.new_inbox()
        self._subscriptions: list[Subscription] = []
        self._shards: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False

    async def start(self) -> None:
        """Listen on the inbox; call once before the first stream."""
        self._subscriptions = [
            await self._bus.subscribe(self._inbox, self._on_batch),
            await self._bus.subscribe(f"{self._inbox}.*", self._on_lane_batch),
            await self._bus.subscribe(f"{self._replies}.*", self._on_attached),
        ]
        self._bus.reconnect_hooks.append(self._on_reconnect)
        self._is_open = True
        self._tick()

    async def follow(self, shard: str) -> None:
        """Hear the heartbeats of this shard's detokenizers; harmless when repeated."""
        if shard not in self._shards:
            self._shards.add(shard)
            subject = subjects.detokenizer_heartbeat(shard)
            handler = functools.partial(self._on_heartbeat, shard)
            self._subscriptions.append(await self._bus.subscribe(subject, handler))

    async def stop(self) -> None:
        """Stop listening; streams get nothing more. Harmless when repeated."""
        if not self._is_open:
            return
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._bus.reconnect_hooks.remove(self._on_reconnect)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    def heard_lately(self, shard: str) -> list[str]:
        """Detokenizers of a followed shard whose heartbeat came a moment ago."""
        return self.attachments.heard_lately(shard, self._clock())

    def attach(self, stream: Stream) -> None:
        """Begin, or after detach resume, reading from the stream's positions."""
        self.attachments.attach(stream, self._clock())
        self._send()

    def detach(self, stream: Stream) -> None:
        """Stop reading, for good or until attach is called again."""
        self.attachments.detach(stream)
        self._send()

    def _on_batch(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        self._take_batch(data, 0)

    def _on_lane_batch(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        lane = subject.rpartition(".")[2]
        if lane.isdecimal():
            self._take_batch(data, int(lane))

    def _take_batch(self, data: bytes, lane: int) -> None:
        try:
            batch = _decode_batch(data)
        except WireError:
            self.num_malformed += 1
            return
        now = self._clock()
        for stream, delta in self.attachments.on_batch(batch, now, lane):
            stream.on_delta(delta, now)
        self._send()

    def _on_attached(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        number_text = subject.rpartition(".")[2]
        number = int(number_text) if number_text.isdecimal() else 0
        if headers.startswith(NO_RESPONDERS):
            self.attachments.on_no_responders(number, self._clock())
            return
        try:
            attached = _decode_attached(data)
        except WireError:
            self.num_malformed += 1
            return
        self.attachments.on_attached(number, attached.detokenizer, self._clock())

    def _on_heartbeat(self, shard: str, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        try:
            heartbeat = _decode_heartbeat(data)
        except WireError:
            self.num_malformed += 1
            return
        self.attachments.on_detokenizer(shard, heartbeat.detokenizer, self._clock(), leaving=heartbeat.leaving)
        self._send()

    def _on_reconnect(self) -> None:
        self.attachments.attach_all_again(self._clock())
        self._send()

    def _tick(self) -> None:
        self.attachments.tick(self._clock())
        self._send()
        if self._is_open:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _send(self) -> None:
        """Publish what the attachments want; what is lost is asked for again by tick."""
        if not self.attachments.outgoing:
            return
        outgoing, self.attachments.outgoing = self.attachments.outgoing, []
        for message in outgoing:
            if isinstance(message, SendAttach):
                self._send_attach(message)
            else:
                inbox = self._inbox_of(message.lane)
                detach = Detach(request_id=message.request_id, number=message.number, inbox=inbox)
                self._bus.publish(subjects.detach(message.shard), encode(detach))

    def _inbox_of(self, lane: int) -> str:
        return f"{self._inbox}.{lane}" if lane else self._inbox

    def _send_attach(self, message: SendAttach) -> None:
        stream = message.stream
        attach = Attach(
            request_id=stream.request_id,
            inbox=self._inbox_of(stream.lane),
            number=message.number,
            positions=tuple(stream.positions),
        )
        if message.detokenizer:
            subject = subjects.attach_direct(stream.shard, message.detokenizer)
        else:
            subject = subjects.attach(stream.shard)
        self._bus.publish(subject, encode(attach), reply=f"{self._replies}.{message.number}")
