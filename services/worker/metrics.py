"""Metrics of the worker: plain numbers while it works, Prometheus families when scraped, with vLLM's names."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# From a hundredth of a percent to all of a step of 5 ms, finely, and on from there.
_WAIT_S = (
    *(0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015),
    *(0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0),
)
_OVERHEAD_S = (0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_FRAME_S = (0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Distribution:
    """Counts by bucket, as Prometheus has them; bounds: upper ones, inclusive and ascending."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def family(self, name: str, text: str) -> Metric:
        """As a histogram."""
        total, buckets = 0, []
        for bound, count in zip((*(str(float(bound)) for bound in self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.sum)


class WorkerMetrics(Collector):
    """One per process; tests pass a registry of their own. steps_failed and messages_dropped count by reason.

    While there is work, the engine's thread is in a step, around one, or waits: step_seconds, overhead_seconds and
    wait_seconds add up to all its time, so each one's share follows from the sums.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.step_seconds = Distribution(_STEP_S)
        self.overhead_seconds = Distribution(_OVERHEAD_S)
        self.wait_seconds = Distribution(_WAIT_S)
        self.frame_seconds = Distribution(_FRAME_S)
        self.iteration_tokens = Distribution(_TOKENS)
        self.num_sequences = 0
        self.num_frames_outstanding = 0
        self.num_frames = 0
        self.num_frames_resent = 0
        self.num_rows = 0
        self.num_row_errors = 0
        self.num_swapped_blocks = 0
        self.num_epochs = 0
        self.steps_failed: Counter[str] = Counter()
        self.messages_dropped: Counter[str] = Counter()
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        yield self.step_seconds.family("tokenbus_worker_step_seconds", "Duration of one engine step.")
        yield self.overhead_seconds.family(
            "tokenbus_worker_step_overhead_seconds", "Time between plan and engine, and engine and frame, of one step."
        )
        yield self.wait_seconds.family(
            "tokenbus_worker_engine_wait_seconds", "Time the engine waited for the plan that continues its sequences."
        )
        yield self.frame_seconds.family(
            "tokenbus_worker_frame_stored_seconds",
            "Time from the end of an engine step until the log has acknowledged its frame.",
        )
        yield self.iteration_tokens.family("vllm:iteration_tokens_total", "Tokens computed in one step.")
        outstanding = "Frames not yet known to be in the log."
        yield GaugeMetricFamily("tokenbus_worker_sequences", "Sequences held.", value=self.num_sequences)
        yield GaugeMetricFamily("tokenbus_worker_frames_outstanding", outstanding, value=self.num_frames_outstanding)
        for name, text, value in (
            ("frames", "Frames sent for the first time.", self.num_frames),
            ("frames_resent", "Frames sent again.", self.num_frames_resent),
            ("rows", "Rows computed.", self.num_rows),
            ("row_errors", "Sequences that could not be computed.", self.num_row_errors),
            ("swapped_blocks", "KV blocks moved to the swap space or back.", self.num_swapped_blocks),
            ("epochs", "Epochs opened by a leader.", self.num_epochs),
        ):
            yield CounterMetricFamily(f"tokenbus_worker_{name}", text, value=value)
        for name, text, counts in (
            ("steps_failed", "Steps that raised and were computed sequence by sequence.", self.steps_failed),
            ("messages_dropped", "Messages that were not used.", self.messages_dropped),
        ):
            family = CounterMetricFamily(f"tokenbus_worker_{name}", text, labels=["reason"])
            for reason, count in sorted(counts.items()):
                family.add_metric([reason], count)
            yield family
