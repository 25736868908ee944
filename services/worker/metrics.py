"""Prometheus metrics of the worker; vLLM's name where it has one."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAIT_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class WorkerMetrics:
    """One per process; tests pass a registry of their own."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.step_seconds = Histogram(
            "tokenbus_worker_step_seconds", "Duration of one engine step", buckets=_STEP_S, registry=registry
        )
        self.wait_seconds = Histogram(
            "tokenbus_worker_engine_wait_seconds",
            "Time the engine waited for the plan that continues its sequences",
            buckets=_WAIT_S,
            registry=registry,
        )
        self.iteration_tokens = Histogram(
            "vllm:iteration_tokens_total", "Tokens computed in one step", buckets=_TOKENS, registry=registry
        )
        self.num_sequences = Gauge("tokenbus_worker_sequences", "Sequences held", registry=registry)
        self.frames_outstanding = Gauge(
            "tokenbus_worker_frames_outstanding",
            "Frames not yet known to be in the log",
            registry=registry,
        )
        self.frames_sent = Counter("tokenbus_worker_frames", "Frames sent for the first time", registry=registry)
        self.frames_resent = Counter("tokenbus_worker_frames_resent", "Frames sent again", registry=registry)
        self.rows = Counter("tokenbus_worker_rows", "Rows computed", registry=registry)
        self.row_errors = Counter(
            "tokenbus_worker_row_errors", "Sequences that could not be computed", registry=registry
        )
        self.epochs = Counter("tokenbus_worker_epochs", "Epochs opened by a leader", registry=registry)
        self.messages_dropped = Counter(
            "tokenbus_worker_messages_dropped", "Messages that were not used", ["reason"], registry=registry
        )
