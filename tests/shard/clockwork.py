"""A virtual clock, a lossy network, processes that can be paused and killed: the world of a simulated shard."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shared.log.memory import MemoryLog

T = TypeVar("T")
START_NS = 10**18


def now_or_never(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits (all of MemoryLog's)."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("the coroutine waited")


class World:
    """Events in the order of their times. Everything random comes from the one seed."""

    def __init__(self, seed: int, loss: float = 0.0, max_records: int | None = None) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self.processes: list[Process] = []
        self.log = MemoryLog(self.unix_ns, self._on_ack, max_records)
        self._ack_handlers: dict[str, Callable[[bytes], None]] = {}
        self._newest_arrival: dict[str, float] = {}

    def unix_ns(self) -> int:
        """The world's time as the log stamps it."""
        return START_NS + int(self.now * 1e9)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._num_events += 1
        heapq.heappush(self._events, (self.now + delay_s, self._num_events, event))

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass up to a moment, or until stop holds."""
        while self._events and self._events[0][0] <= until_s and not stop():
            self.now, _, event = heapq.heappop(self._events)
            event()
        if not stop():
            self.now = max(self.now, until_s)

    def latency_s(self, channel: str = "") -> float:
        """How long a message takes; a few take long. Messages of one channel (a connection) stay in order."""
        quick = self.random.random() < 0.99
        latency_s = self.random.uniform(0.0001, 0.001) if quick else self.random.uniform(0.001, 0.1)
        if not channel:
            return latency_s
        arrival = max(self.now + latency_s, self._newest_arrival.get(channel, 0.0))
        self._newest_arrival[channel] = arrival
        return arrival - self.now

    def lost(self) -> bool:
        """Whether a message that may be lost is."""
        return self.random.random() < self.loss

    def send(self, to: "Process", handle: Callable[[], None]) -> None:
        """A message to a process: one that is lost with its receiver, and comes after those sent before."""
        self.after(self.latency_s(to.name), lambda: to.deliver(handle))

    def on_ack(self, reply: str, handler: Callable[[bytes], None]) -> None:
        """Who hears of acknowledgements sent to a reply subject."""
        self._ack_handlers[reply] = handler

    def _on_ack(self, reply: str, data: bytes) -> None:
        handler = self._ack_handlers.pop(reply, None)
        if handler is not None:
            handler(data)

    def appended(self) -> None:
        """Something was appended: every process that folds gets to see it."""
        for process in self.processes:
            self.send(process, process.catch_up)


class Process:
    """Something that handles messages one by one, unless it is paused or dead."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self._paused_until = 0.0
        self._mail: deque[Callable[[], None]] = deque()
        world.processes.append(self)

    @property
    def paused(self) -> bool:
        """Whether SIGSTOP holds it."""
        return self.world.now < self._paused_until

    def deliver(self, handle: Callable[[], None]) -> None:
        """Handle a message, after the pause if there is one."""
        if not self.alive:
            return
        if self.paused or self._mail:
            self._mail.append(handle)
        else:
            handle()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self._paused_until = self.world.now + seconds
        self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        while self.alive and self._mail and not self.paused:
            self._mail.popleft()()

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self._mail.clear()
        self.world.processes.remove(self)

    def every(self, seconds: float, tick: Callable[[], None]) -> None:
        """A timer of the process; while it is paused, ticks do not pile up."""

        def fire() -> None:
            if not self.alive:
                return
            if not self.paused:
                self.deliver(tick)
            self.world.after(seconds, fire)

        self.world.after(self.world.random.uniform(0, seconds), fire)

    def catch_up(self) -> None:
        """Fold what is new in the log; processes without a fold have nothing to do."""
