"""Which gateways read which requests, and which of them have fallen silent.

A gateway reads for its clients. When it dies, nobody tells the log, so the leader listens to the gateways' heartbeats.
Times are seconds of a monotonic clock, given by the caller.
"""

from dataclasses import dataclass, field

GATEWAY_SILENCE_S = 1.5


@dataclass(slots=True)
class _Gateway:
    """heard: when it was heard of last, or when it got a chance to be heard first. reads: ids of requests."""

    heard: float
    reads: set[str] = field(default_factory=set)


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
            self._gateways[gateway] = _Gateway(now)
        else:
            known.heard = now

    def add(self, request_id: str, gateway: str, now: float) -> None:
        """The gateway reads the request."""
        known = self._gateways.get(gateway)
        if known is None:
            known = self._gateways[gateway] = _Gateway(now)
        known.reads.add(request_id)

    def remove(self, request_id: str, gateway: str) -> None:
        """It reads it no more, or the request has ended."""
        known = self._gateways.get(gateway)
        if known is not None:
            known.reads.discard(request_id)

    def reset(self, now: float) -> None:
        """This process was paused or deaf: that says nothing about others."""
        for known in self._gateways.values():
            known.heard = now

    def take_silent(self, now: float) -> list[tuple[str, set[str]]]:
        """Gateways that fell silent with what they read, each once: they are forgotten until they are heard again."""
        silent = [name for name, known in self._gateways.items() if now - known.heard > GATEWAY_SILENCE_S]
        return [(name, reads) for name in silent if (reads := self._gateways.pop(name).reads)]
