"""What a node's worker says of its steps: its Prometheus histograms, read before and after a measurement."""

import re
import urllib.request
from dataclasses import dataclass

from bench.node import Node


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values by bucket. bounds: upper ones, inclusive and ascending, the last infinite. counts: within each bucket,
    not cumulated. total: sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def num_values(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def since(self, before: "Histogram") -> "Histogram":
        """What came after an earlier reading of the same histogram."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Histogram(self.bounds, counts, self.total - before.total)

    def quantile(self, share: float) -> float:
        """Upper bound of the bucket of the smallest value with this share of all at or below it, so never less than
        that value; 0 without values."""
        wanted, seen = share * self.num_values, 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


def read_histogram(text: str, name: str) -> Histogram:
    """A histogram without labels in Prometheus text. Raises LookupError if there is none of this name."""
    rows = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)$', text, re.MULTILINE)
    total = re.search(rf"^{name}_sum (\S+)$", text, re.MULTILINE)
    if not rows or total is None:
        raise LookupError(f"no histogram {name}")
    cumulated = [int(float(count)) for _, count in rows]
    counts = tuple(now - before for now, before in zip(cumulated, [0, *cumulated], strict=False))
    return Histogram(tuple(float(bound) for bound, _ in rows), counts, float(total[1]))


def worker_metrics(node: Node) -> str:
    """Prometheus text of the node's first worker."""
    log = (node.data_dir / "logs" / "worker-0.log").read_text()
    listeners = re.findall(r"http://127\.0\.0\.1:\d+", log)
    if not listeners:
        raise LookupError("the worker's log names no health listener")
    with urllib.request.urlopen(listeners[-1] + "/metrics", timeout=5) as answer:
        return str(answer.read().decode())
