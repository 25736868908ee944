"""Folding a JetStream stream without gaps, quickly back after any break.

An ephemeral push consumer without acknowledgements feeds the fold; it is made anew on a gap, on silence and on
reconnection, from the record after the last one folded. nats-py's ordered consumer takes some 19 s to notice a killed
server; the heartbeats here show it in 0.8 s. A silent server is also asked for a sign of life: one that was stopped
keeps its connections open, and in a cluster another one takes over.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.js import JetStreamContext, api

from shared.bus.cancellation import cancellation_kept
from shared.bus.client import Bus, Subscription
from shared.bus.snapshots import SnapshotStore
from shared.log import snapshot
from shared.log.fold import Fold
from shared.log.port import OnRecord, OnReload
from shared.messages.codec import WireError

HEARTBEAT_S = 0.25
SILENCE_S = 0.8
LIVE_S = 0.5
WATCH_S = 0.1
RETRY_S = 0.05
INACTIVE_S = 5.0
PROBE_S = 1.0
ELECTION_S = 30.0

_LAST_CONSUMER = re.compile(rb"Nats-Last-Consumer: (\d+)")
_LAST_STREAM = re.compile(rb"Nats-Last-Stream: (\d+)")
_STALLED = re.compile(rb"Nats-Consumer-Stalled: (\S+)")

_logger = logging.getLogger(__name__)


class LogLost(RuntimeError):
    """The log ends before what is folded: it was deleted or restored from an older state. Only a new start helps."""


@dataclass(slots=True)
class DeliveryPosition:
    """Where a message stands, from its reply subject ($JS.ACK...)."""

    stream_seq: int
    consumer_seq: int
    clock_ns: int

    @classmethod
    def parse(cls, reply: str) -> "DeliveryPosition":
        """Both forms of the subject: without (9 parts) and with domain and account."""
        parts = reply.split(".")
        first = 5 if len(parts) == 9 else 7
        return cls(int(parts[first]), int(parts[first + 1]), int(parts[first + 2]))


class NatsTail:
    """See shared.log.port.Tail. resets and reloads count its starts and the snapshots it loaded."""

    def __init__(
        self,
        bus: Bus,
        js: JetStreamContext,
        stream: str,
        snapshots: SnapshotStore,
        fold: Fold,
        on_record: OnRecord,
        on_reload: OnReload,
    ) -> None:
        self._bus = bus
        self._js = js
        self._stream = stream
        self._snapshots = snapshots
        self._fold = fold
        self._on_record = on_record
        self._on_reload = on_reload
        self._subscription: Subscription | None = None
        self._generation = 0
        self._delivered = 0
        self._heard = 0.0
        self._target = 0
        self._short_since: float | None = None
        self._wanted = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.resets = 0
        self.reloads = 0

    @property
    def live(self) -> bool:
        """Whether the log was heard of within half a second, and everything heard of is folded."""
        heard_lately = asyncio.get_running_loop().time() - self._heard < LIVE_S
        return self._bus.is_connected and heard_lately and not self._wanted.is_set() and self._caught_up.is_set()

    async def start(self) -> None:
        """See Tail.start. Raises LogLost."""
        await self._reset_until_done()
        self._keeper = asyncio.create_task(self._or_die(self._keep))
        self._watcher = asyncio.create_task(self._or_die(self._watch))
        self._bus.reconnect_hooks.append(self.request_reset)
        await self._caught_up.wait()

    async def stop(self) -> None:
        """See Tail.stop."""
        if self.request_reset in self._bus.reconnect_hooks:
            self._bus.reconnect_hooks.remove(self.request_reset)
        self._generation += 1
        tasks = [task for task in (self._keeper, self._watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    def request_reset(self) -> None:
        """Make the consumer anew; what it still delivers is ignored."""
        self._generation += 1
        self._wanted.set()

    async def _or_die(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Without either of its tasks the fold would stand still some day, and nobody would know why."""
        try:
            await work()
        except Exception as error:
            self._bus.fatal(error)

    async def _keep(self) -> None:
        """Reset whenever it is wanted, until it succeeds."""
        while True:
            await self._wanted.wait()
            await self._reset_until_done()

    async def _watch(self) -> None:
        """Notice silence, the log's and the server's."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            if loop.time() - self._heard > SILENCE_S and self._bus.is_connected and not self._wanted.is_set():
                self.request_reset()
                await self._bus.probe(PROBE_S)

    async def _reset_until_done(self) -> None:
        while True:
            if await self._reset():
                return
            await asyncio.sleep(RETRY_S)

    async def _reset(self) -> bool:
        self._wanted.clear()
        self.resets += 1
        try:
            with cancellation_kept():
                await self._reset_consumer()
            return True
        except (nats.errors.Error, OSError, TimeoutError, WireError) as error:
            _logger.debug("tail of %s cannot start yet: %s", self._stream, error)
            return False

    async def _reset_consumer(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None
        info = await self._js.stream_info(self._stream)
        state = info.state
        if state.first_seq > self._fold.seq + 1:
            await self._reload(state.first_seq)
        if self._fold.seq > state.last_seq:
            self._on_short_log(state.last_seq, (info.config.num_replicas or 1) > 1)
        self._short_since = None
        self._target = state.last_seq
        self._note_progress()
        self._generation += 1
        self._delivered = 0
        generation = self._generation
        inbox = self._bus.new_inbox()

        def receive(subject: str, reply: str, data: bytes, headers: bytes) -> None:
            if generation == self._generation:
                self._receive(subject, reply, data, headers)

        self._subscription = await self._bus.subscribe(inbox, receive)
        config = api.ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._fold.seq + 1,
            ack_policy=api.AckPolicy.NONE,
            max_deliver=1,
            idle_heartbeat=HEARTBEAT_S,
            flow_control=True,
            mem_storage=True,
            inactive_threshold=INACTIVE_S,
        )
        self._heard = asyncio.get_running_loop().time()
        await self._js.add_consumer(self._stream, config)

    def _on_short_log(self, last_seq: int, is_replicated: bool) -> None:
        """Raise LogLost; a new leader among replicas gets ELECTION_S to apply what it has stored first."""
        why = f"{self._stream} ends at {last_seq}, but {self._fold.seq} is folded"
        now = asyncio.get_running_loop().time()
        if self._short_since is None:
            self._short_since = now
        if is_replicated and now - self._short_since < ELECTION_S:
            raise WireError(why)
        raise LogLost(why)

    async def _reload(self, first_seq: int) -> None:
        """The log was trimmed past the fold: continue from the newest snapshot."""
        data = await self._snapshots.load(min_seq=first_seq - 1)
        if data is None:
            raise WireError(f"{self._stream} begins at {first_seq} and no snapshot reaches it")
        snapshot.restore(self._fold, data)
        self.reloads += 1
        self._on_reload()

    def _receive(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        if headers.startswith(b"NATS/1.0 "):
            self._status(reply, headers)
            return
        position = DeliveryPosition.parse(reply)
        if position.consumer_seq != self._delivered + 1 or position.stream_seq != self._fold.seq + 1:
            self.request_reset()
            return
        self._delivered = position.consumer_seq
        kind = subject.rpartition(".")[2]
        self._on_record(self._fold.apply(kind, data, position.stream_seq, position.clock_ns))
        if not self._caught_up.is_set():
            self._note_progress()

    def _note_progress(self) -> None:
        """Caught up: the fold has reached the end that the log had when the consumer was last started."""
        if self._fold.seq >= self._target:
            self._caught_up.set()
        else:
            self._caught_up.clear()

    def _status(self, reply: str, headers: bytes) -> None:
        """Idle heartbeats tell how far the log is; flow control wants an answer."""
        stalled = _STALLED.search(headers)
        if stalled:
            self._bus.publish(stalled[1].decode(), b"")
        if reply:
            self._bus.publish(reply, b"")
            return
        consumer, stream = _LAST_CONSUMER.search(headers), _LAST_STREAM.search(headers)
        if consumer and stream and (int(consumer[1]) > self._delivered or int(stream[1]) > self._fold.seq):
            self.request_reset()
