"""Which gateways read which requests, and which of them have fallen silent.

A gateway reads for its clients. When it dies, nobody tells the log, so the leader listens to the gateways' heartbeats.
Times are seconds of a monotonic clock, given by the caller.
"""

from dataclasses import dataclass, field

GATEWAY_SILENCE_S = 1.5
# Whoever was cut off from the bus together with the leader may need longer to come back: a connection attempt that
# hangs takes a second, and so does the pause after one that was refused.
RETURN_S = 5.0


@dataclass(slots=True)
class _Gateway:
    """silent_at: when it is given up, unless it is heard of before. reads: ids of requests."""

    silent_at: float
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
            self._gateways[gateway] = _Gateway(now + GATEWAY_SILENCE_S)
        else:
            known.silent_at = now + GATEWAY_SILENCE_S

    def add(self, request_id: str, gateway: str, now: float) -> None:
        """The gateway reads the request."""
        known = self._gateways.get(gateway)
        if known is None:
            known = self._gateways[gateway] = _Gateway(now + GATEWAY_SILENCE_S)
        known.reads.add(request_id)

    def remove(self, request_id: str, gateway: str) -> None:
        """It reads it no more, or the request has ended."""
        known = self._gateways.get(gateway)
        if known is not None:
            known.reads.discard(request_id)

    def reset(self, now: float, *, was_deaf: bool) -> None:
        """This process was paused, or cut off: that says nothing about others, and others may have been cut off too."""
        for known in self._gateways.values():
            known.silent_at = max(known.silent_at, now + (RETURN_S if was_deaf else GATEWAY_SILENCE_S))

    def take_silent(self, now: float) -> list[tuple[str, set[str]]]:
        """Gateways that fell silent with what they read, each once: they are forgotten until they are heard again."""
        silent = [name for name, known in self._gateways.items() if now > known.silent_at]
        return [(name, reads) for name in silent if (reads := self._gateways.pop(name).reads)]
