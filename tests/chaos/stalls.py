"""Gaps between two tokens of a stream, and which fault they belong to."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

STALL_S = 0.2  # ten steps of the fake engine
WINDOW_S = 4.0  # what begins later has another cause: faults come every 5 s
EARLY_S = 0.1  # a stream's last token may have arrived just before the fault was noted


@dataclass(slots=True)
class Stall:
    """One gap of STALL_S or more."""

    key: str
    begun_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended_at - self.begun_at


@dataclass(slots=True)
class FaultRecord:
    """One fault as it happened. Times in seconds of the event loop's clock.

    healed_at: when its victim was whole and ready again, None while it is not. detail: seconds, role and the like.
    """

    number: int
    kind: str
    service: str
    name: str
    at: float
    detail: dict[str, object] = field(default_factory=dict)
    healed_at: float | None = None

    def overlaps(self, begun_at: float, ended_at: float) -> bool:
        """Whether it was open at any time between the two."""
        return self.at <= ended_at and (self.healed_at is None or self.healed_at >= begun_at)


class StallWatch:
    """Told of every token of every stream; keeps the gaps and the tokens per second."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self.tokens_by_second: Counter[int] = Counter()
        self.num_tokens = 0
        self._last: dict[str, float] = {}

    def on_tokens(self, key: str, number: int, now: float) -> None:
        """A stream received tokens."""
        self.num_tokens += number
        self.tokens_by_second[int(now)] += number
        last = self._last.get(key)
        if last is not None and now - last >= STALL_S:
            self.stalls.append(Stall(key, last, now))
        self._last[key] = now

    def on_end(self, key: str) -> None:
        """A stream is over."""
        self._last.pop(key, None)

    def tokens_per_s(self, begun_at: float, ended_at: float) -> float:
        """Mean over the whole seconds between the two times."""
        seconds = range(int(begun_at) + 1, int(ended_at))
        return sum(self.tokens_by_second[second] for second in seconds) / len(seconds) if seconds else 0.0


@dataclass(slots=True)
class Attribution:
    """Stalls by cause: clean[service] after a kill -9 with nothing else wrong, each with the kill's number;
    mixed[kind service] all others that overlap a fault; unexplained overlap none."""

    clean: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    mixed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unexplained: list[Stall] = field(default_factory=list)


def attribute(stalls: Iterable[Stall], faults: list[FaultRecord]) -> Attribution:
    """Give every stall to the newest fault before its end that is still open or within WINDOW_S."""
    found = Attribution()
    for stall in stalls:
        near = [fault for fault in faults if _touches(fault, stall)]
        if not near:
            found.unexplained.append(stall)
            continue
        cause = near[-1]
        if len(near) == 1 and cause.kind == "kill" and not cause.detail.get("alone"):
            found.clean[cause.service].append((cause.number, stall.seconds))
        else:
            found.mixed[f"{cause.kind} {cause.service}"].append(stall.seconds)
    return found


def kills_alone(faults: list[FaultRecord]) -> Counter[str]:
    """By service: kills with a well replica in whose window no other fault was open or began."""
    found: Counter[str] = Counter()
    for kill in faults:
        window = Stall("", kill.at, kill.at + WINDOW_S)
        alone = not any(_touches(other, window) for other in faults if other is not kill)
        found[kill.service] += kill.kind == "kill" and alone and not kill.detail.get("alone")
    return found


def _touches(fault: FaultRecord, stall: Stall) -> bool:
    until = max(fault.healed_at if fault.healed_at is not None else stall.ended_at, fault.at + WINDOW_S)
    return fault.at - EARLY_S <= stall.ended_at and stall.begun_at <= until


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which this share of them lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
