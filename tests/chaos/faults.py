"""Which fault comes next: drawn from a seed, so that a run can be repeated. Pure.

kill    SIGKILL                                     blink  SIGSTOP for 0.95 to 1.45 s, around the limit of 1 s
term    SIGTERM, started again by the node          stall  SIGSTOP for 3 to 30 s, then SIGCONT
cut     its edge to nats-server passes nothing      delay  200 ms and jitter on its edge
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")
NATS_SERVER = "nats-server"

# Victims of each kind with their weights. A stalled nats-server is survived by a cluster of three only.
_ALL = dict.fromkeys((*SERVICES, NATS_SERVER), 1.0)
_OURS = dict.fromkeys(SERVICES, 1.0)
VICTIMS = {
    "kill": _ALL,
    "term": _ALL,
    "stall": _OURS,
    "blink": {"worker": 3.0, "scheduler": 3.0, "gateway": 1.0, "tokenizer": 0.5, "detokenizer": 1.0},
    "cut": _OURS,
    "delay": _OURS,
}
PROCESS_FAULTS = {"kill": 0.5, "blink": 0.2, "stall": 0.14, "term": 0.16}
NETWORK_FAULTS = {"cut": 0.5, "delay": 0.5}
NETWORK_SHARE = 0.2  # of the pauses between two process faults that also get a fault of the network
ALL_KINDS = (*PROCESS_FAULTS, *NETWORK_FAULTS)

_SECONDS = {"blink": (0.95, 1.45), "stall": (3.0, 30.0), "cut": (0.5, 8.0), "delay": (3.0, 10.0)}
LEADER_SHARE = 0.8  # of the faults of schedulers that hit the one that leads


@dataclass(frozen=True, slots=True)
class Fault:
    """services: the victim's service first, then those to take if its replica is not well. place: which of its
    processes, as a share of their number. hits_leader: for schedulers. seconds: how long it lasts, 0 for signals that
    kill."""

    kind: str
    services: tuple[str, ...]
    place: float
    hits_leader: bool
    seconds: float = 0.0


class FaultDraw:
    """An endless supply. kinds: those allowed; services: those that may be hit. Raises ValueError if none is left."""

    def __init__(self, seed: int, kinds: Iterable[str], services: Iterable[str]) -> None:
        self._draw = random.Random(seed)
        self._services = tuple(services)
        kinds = tuple(kinds)
        self._process = {kind: weight for kind, weight in PROCESS_FAULTS.items() if kind in kinds}
        self._network = {kind: weight for kind, weight in NETWORK_FAULTS.items() if kind in kinds}
        unknown = (set(kinds) - set(ALL_KINDS)) | (set(self._services) - _ALL.keys())
        if unknown or not self._process or not self._services:
            raise ValueError(f"no faults of {', '.join(kinds) or 'no kind'} on {', '.join(self._services)} {unknown}")

    def next(self) -> Fault:
        """The next fault of a process."""
        return self._make(self._choose(self._process))

    def next_network(self) -> Fault | None:
        """A fault of the network for the pause that follows, if there is one."""
        if self._draw.random() >= NETWORK_SHARE or not self._network:
            return None
        return self._make(self._choose(self._network))

    def _make(self, kind: str) -> Fault:
        left = {name: weight for name, weight in VICTIMS[kind].items() if name in self._services}
        order = []
        while left:
            order.append(self._choose(left))
            del left[order[-1]]
        low, high = _SECONDS.get(kind, (0.0, 0.0))
        seconds = low * (high / low) ** self._draw.random() if kind == "stall" else self._draw.uniform(low, high)
        return Fault(kind, tuple(order), self._draw.random(), self._draw.random() < LEADER_SHARE, round(seconds, 3))

    def _choose(self, weights: dict[str, float]) -> str:
        return self._draw.choices(list(weights), list(weights.values()))[0]
