"""The world of a simulated shard: a virtual clock, a network that loses, doubles, delays and cuts, and its processes.

Everything random comes from the one seed, and events of the same time happen in the order in which they were made, so a
seed is a run: the same one each time, on each machine.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Handler = Callable[..., None]
START_NS = 10**18
QUICK_SHARE = 0.99


def now_or_never(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits (all of MemoryLog's)."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("the coroutine waited")


class World:
    """Events in the order of their times, and the bus on which all processes are.

    loss, duplication: share of messages that are lost, or come twice. disturbed_until: when the last fault so far that
    lasts is over. trace: told of each line of the run, if set.
    """

    def __init__(
        self, seed: int, *, loss: float = 0.0, duplication: float = 0.0, trace: Callable[[str], None] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.duplication = duplication
        self.trace = trace
        self.now = 0.0
        self.processes: list[Process] = []
        self.num_events = 0
        self.disturbed_until = 0.0
        self._draw = self.random.random
        self._events: list[tuple[float, int, Handler, tuple[Any, ...]]] = []
        self._stalled_until = 0.0
        self._stalled_since = 0.0
        self._connection = 0
        self._cuts: dict[tuple[Process, Process], float] = {}

    def unix_ns(self) -> int:
        """The world's time as the log stamps it."""
        return START_NS + int(self.now * 1e9)

    def note(self, *words: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:9.4f}  {' '.join(map(str, words))}")

    def after(self, delay_s: float, event: Handler, *args: Any) -> None:
        """Let something happen later."""
        self.num_events += 1
        heapq.heappush(self._events, (self.now + delay_s, self.num_events, event, args))

    def run(self, until_s: float) -> None:
        """Let time pass up to a moment."""
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= until_s:
            self.now, _, event, args = pop(events)
            event(*args)
        self.now = until_s

    # ---- the bus ----------------------------------------------------------------------------------------------------

    def latency_s(self) -> float:
        """How long a message takes: up to a millisecond, now and then up to a tenth of a second."""
        draw = self._draw()
        return 0.0001 + draw * 0.0009 if draw < QUICK_SHARE else 0.001 + (draw - QUICK_SHARE) * 10

    def lost(self) -> bool:
        """Whether a message that may be lost is."""
        return self._draw() < self.loss

    def send(self, sender: "Process", to: "Process", handle: Handler, *args: Any) -> None:
        """A message. Those between the same two processes come in order, unless they are lost; a message is lost with
        its receiver, with the server's connections, and on an edge that is cut."""
        if self.trace is not None:
            self.note(f"{sender.name} -> {to.name}", handle.__name__, *map(_short, args))
        delay_s = sender.delay_s()
        if delay_s is None or self.lost() or (self._cuts and self._is_cut(sender, to)):
            return
        arrival = max(self.now + delay_s + self.latency_s(), sender.arrivals.get(to, 0.0), self._stalled_until)
        sender.arrivals[to] = arrival
        self.after(arrival - self.now, self._arrive, self._connection, to, handle, args)
        if self.duplication and self._draw() < self.duplication:
            self.after(arrival - self.now + self.latency_s(), self._arrive, self._connection, to, handle, args)

    def _arrive(self, connection: int, to: "Process", handle: Handler, args: tuple[Any, ...]) -> None:
        if connection == self._connection and self.now >= to.cut_until:
            to.deliver(handle, *args)

    def to_log(self, sender: "Process", act: Handler, *args: Any) -> None:
        """A message to the log, which acts when it comes, unless it is lost; those of one sender come in order."""
        delay_s = sender.delay_s()
        if delay_s is not None and not self.lost():
            arrival = max(self.now + delay_s + self.latency_s(), sender.arrival_at_log)
            sender.arrival_at_log = arrival
            self.after(arrival - self.now, self._arrive_at_log, act, args)

    def _arrive_at_log(self, act: Handler, args: tuple[Any, ...]) -> None:
        if self.now < self._stalled_until:
            self.after(self._stalled_until - self.now, self._arrive_at_log, act, args)
        else:
            act(*args)

    def from_log(self, to: "Process", handle: Handler, *args: Any) -> None:
        """The log's answer; such ones come in any order."""
        if not self.lost():
            self.after(self.latency_s(), self._arrive, self._connection, to, handle, args)

    # ---- faults of the bus ------------------------------------------------------------------------------------------

    def disturbed(self, seconds: float) -> None:
        """A fault begins that lasts this long."""
        self.disturbed_until = max(self.disturbed_until, self.now + seconds)

    def cut(self, one: "Process", other: "Process", seconds: float) -> None:
        """Nothing passes between these two for a while, in either direction."""
        self.disturbed(seconds)
        self._cuts[one, other] = self._cuts[other, one] = self.now + seconds

    def _is_cut(self, sender: "Process", to: "Process") -> bool:
        return self._cuts.get((sender, to), 0.0) > self.now

    def ask_for(self, asker: "Process", listener: "Process | None", on_absent: Handler) -> None:
        """The asker's server says if it knows of no connection of the listener's. One that is paused has one."""
        is_there = listener is not None and listener.alive and self.now >= listener.cut_until
        if is_there and listener is not None and not self._is_cut(asker, listener):
            return
        if self.now >= max(asker.cut_until, self._stalled_until) and not self.lost():
            self.after(self.latency_s(), asker.deliver, on_absent)

    def stall(self, seconds: float) -> None:
        """SIGSTOP of the server: nothing arrives anywhere, and everything does afterwards."""
        self.disturbed(seconds)
        self._stalled_since, self._stalled_until = self.now, self.now + seconds

    def restart_server(self, seconds: float) -> None:
        """kill -9 of the server: what is on its way is lost, what is sent meanwhile waits in the clients."""
        self._connection += 1
        self.stall(seconds)
        for process in self.processes:
            self.after(seconds + self.latency_s(), process.deliver, process.on_reconnected)

    def silence_s(self) -> float:
        """For how long the server has been silent; 0 while it runs."""
        return self.now - self._stalled_since if self.now < self._stalled_until else 0.0

    @property
    def stalled_until(self) -> float:
        """When the server goes on, if it stands still."""
        return self._stalled_until


class Process:
    """Something that handles messages one by one, unless it is paused, cut off or dead."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.cut_until = 0.0
        self.arrivals: dict[Process, float] = {}
        self.arrival_at_log = 0.0
        self._cut_since = 0.0
        self._keeps_unsent = False
        self._paused_until = 0.0
        self._mail: deque[tuple[Handler, tuple[Any, ...]]] = deque()
        world.processes.append(self)
        world.note("start", name)

    def deliver(self, handle: Handler, *args: Any) -> None:
        """Handle a message, after the pause if there is one."""
        if not self.alive:
            return
        if self._mail or self.paused:
            self._mail.append((handle, args))
        else:
            handle(*args)

    def every(self, seconds: float, tick: Handler) -> None:
        """A timer of the process; while it is paused, ticks do not pile up."""
        self.world.after(self.world.random.random() * seconds, self._fire, seconds, tick)

    def _fire(self, seconds: float, tick: Handler) -> None:
        if not self.alive:
            return
        if not self.paused:
            self.deliver(tick)
        self.world.after(seconds, self._fire, seconds, tick)

    def delay_s(self) -> float | None:
        """How long what it sends now waits in its client; None if it is lost there."""
        if self.world.now >= self.cut_until:
            return 0.0
        return self.cut_until - self.world.now if self._keeps_unsent else None

    def on_reconnected(self) -> None:
        """The bus is back after it was gone."""

    # ---- faults -----------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether SIGSTOP holds it."""
        return self.world.now < self._paused_until

    def pause(self, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self.world.note("pause", self.name, f"{seconds:.2f} s")
        self.world.disturbed(seconds)
        self._paused_until = self.world.now + seconds
        self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        while self.alive and self._mail and not self.paused:
            handle, args = self._mail.popleft()
            handle(*args)

    def cut_off(self, seconds: float, *, keeps_unsent: bool) -> None:
        """Its connection to the bus is gone for a while. keeps_unsent: what it sends goes out afterwards."""
        self.world.note("cut off", self.name, f"{seconds:.2f} s")
        self.world.disturbed(seconds)
        self._cut_since, self.cut_until = self.world.now, self.world.now + seconds
        self._keeps_unsent = keeps_unsent
        self.world.after(seconds, self.deliver, self.on_reconnected)

    @property
    def deaf_s(self) -> float:
        """For how long it has heard nothing of the bus; 0 if it hears."""
        own = self.world.now - self._cut_since if self.world.now < self.cut_until else 0.0
        return max(own, self.world.silence_s())

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.world.note("kill", self.name)
            self.alive = False
            self._mail.clear()
            self.world.processes.remove(self)


def _short(value: object) -> str:
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
