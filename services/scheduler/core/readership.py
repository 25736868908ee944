"""Which gateways read which requests, and which of them have fallen silent.

A gateway reads for its clients. When it dies, nobody tells the log, so the leader listens to the gateways' heartbeats.
Silence alone does not say that it is gone: its process may have stood still for lack of a processor, or the server that
it is connected to. So the leader asks the bus whether anybody listens where the gateway does; a gateway that is on the
bus and silent has more time.

Times are seconds of a monotonic clock, given by the caller.
"""

from dataclasses import dataclass, field

GATEWAY_SILENCE_S = 1.5
ASK_EVERY_S = 0.5
HANG_S = 10.0  # of a gateway that is still on the bus, beyond the silence
# Whoever was cut off from the bus together with the leader may need longer to come back: a connection attempt that
# hangs takes a second, and so does the pause after one that was refused.
RETURN_S = 5.0


@dataclass(slots=True)
class _Gateway:
    """silent_at: when it is silent, unless it is heard of before. asked_at: when the bus was asked for it since then.
    is_absent: the bus does not know it. reads: ids of requests. given_up: those that it was given up for since it was
    heard of last, and that still count as read: the log does not know yet."""

    silent_at: float
    asked_at: float | None = None
    is_absent: bool = False
    reads: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)

    def lives(self, silent_at: float) -> None:
        """Whatever was thought of it is void."""
        self.silent_at = silent_at
        self.asked_at = None
        self.is_absent = False

    def is_gone(self, now: float) -> bool:
        """Whether it is given up."""
        return now > self.silent_at + (0.0 if self.is_absent else HANG_S)


class Readership:
    """An index by gateway: a heartbeat costs O(1), a look for silent ones O(gateways), however many requests run.

    A gateway that this process has never heard of has the full time from the moment that it is needed.
    """

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}

    @property
    def num_gateways(self) -> int:
        """Gateways that were heard of lately or read something."""
        return len(self._gateways)

    def on_heartbeat(self, gateway: str, now: float) -> None:
        """A gateway lives."""
        known = self._gateways.get(gateway)
        if known is None:
            self._gateways[gateway] = _Gateway(now + GATEWAY_SILENCE_S)
        else:
            known.lives(now + GATEWAY_SILENCE_S)
            known.given_up.clear()

    def add(self, request_id: str, gateway: str, now: float) -> None:
        """The gateway reads the request, which says that it lived just now if it was given up."""
        known = self._gateways.get(gateway)
        if known is None:
            known = self._gateways[gateway] = _Gateway(now + GATEWAY_SILENCE_S)
        elif known.given_up:
            known.lives(now + GATEWAY_SILENCE_S)
        known.reads.add(request_id)

    def remove(self, request_id: str, gateway: str) -> None:
        """It reads it no more, or the request has ended. A gateway given up for its last request is forgotten."""
        known = self._gateways.get(gateway)
        if known is None:
            return
        known.reads.discard(request_id)
        if request_id in known.given_up:
            known.given_up.discard(request_id)
            if not known.reads:
                del self._gateways[gateway]

    def reset(self, now: float, *, was_deaf: bool) -> None:
        """This process was paused, or cut off: that says nothing about others, and others may have been cut off too."""
        for known in self._gateways.values():
            known.lives(max(known.silent_at, now + (RETURN_S if was_deaf else GATEWAY_SILENCE_S)))
            known.given_up.clear()

    def take_questions(self, now: float) -> list[str]:
        """Silent gateways that the bus is to be asked for now, each every half second; on_absent if it knows none."""
        names: list[str] = []
        for name, known in self._gateways.items():
            if now > known.silent_at and known.reads and not known.is_absent:
                if known.asked_at is None or now >= known.asked_at + ASK_EVERY_S:
                    known.asked_at = now
                    names.append(name)
        return names

    def on_absent(self, gateway: str) -> None:
        """The bus does not know a gateway that it was asked for. One that was heard of since then has come back."""
        known = self._gateways.get(gateway)
        if known is not None and known.asked_at is not None:
            known.is_absent = True

    def take_silent(self, now: float) -> list[tuple[str, set[str]]]:
        """Gateways that are gone with what they read, each request once: until the gateway is heard of again."""
        lost: list[tuple[str, set[str]]] = []
        for name in [name for name, known in self._gateways.items() if now > known.silent_at]:
            known = self._gateways[name]
            if not known.reads:
                del self._gateways[name]
            elif known.is_gone(now) and (new := known.reads - known.given_up):
                known.given_up |= new
                lost.append((name, new))
        return lost

    def is_given_up(self, gateway: str, request_id: str) -> bool:
        """Whether the gateway is still taken for gone, as a reader of this request."""
        known = self._gateways.get(gateway)
        return known is not None and request_id in known.given_up
