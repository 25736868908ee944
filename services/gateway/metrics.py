"""Metrics of the gateway: vLLM's names where it has one, tokenbus_* otherwise."""

from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gateway.core.histogram import FastHistogram

TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
ITL_BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
)
E2E_BOUNDS_S = (
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    600.0,
)


class ModelMetrics:
    """Counts of one model, as plain attributes, so that counting a token needs no look-up. Times in seconds."""

    __slots__ = (
        "e2e_latency",
        "inter_token_latency",
        "num_generation_tokens",
        "num_prompt_tokens",
        "num_success",
        "time_per_output_token",
        "time_to_first_token",
    )

    def __init__(self) -> None:
        self.time_to_first_token = FastHistogram(TTFT_BOUNDS_S)
        self.inter_token_latency = FastHistogram(ITL_BOUNDS_S)
        self.time_per_output_token = FastHistogram(ITL_BOUNDS_S)
        self.e2e_latency = FastHistogram(E2E_BOUNDS_S)
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_success: dict[str, int] = {}


class GatewayMetrics(Collector):
    """All metrics of this process's gateway. Create once per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._models: dict[str, ModelMetrics] = {}
        self._http = Counter("tokenbus_http_responses", "HTTP answers by status", ["status"], registry=registry)
        self._by_status: dict[int, Counter] = {}
        self._followed: list[tuple[str, str, Callable[[], int]]] = []
        self.unknown_fields = Counter(
            "tokenbus_unknown_request_fields", "Fields of request bodies that are not known", registry=registry
        )
        self.client_gone = Counter(
            "tokenbus_client_disconnects", "Requests whose client went before the answer", registry=registry
        )
        self.read_again = Counter(
            "tokenbus_requests_read_again", "Requests read by GET /v1/requests/{id}/stream", registry=registry
        )
        self.running = Gauge("tokenbus_http_requests_running", "Generations being answered", registry=registry)
        registry.register(self)

    def of_model(self, name: str) -> ModelMetrics:
        """The counts of one model."""
        metrics = self._models.get(name)
        if metrics is None:
            metrics = self._models[name] = ModelMetrics()
        return metrics

    def follow(self, name: str, text: str, read: Callable[[], int]) -> None:
        """Export a count that somebody else keeps."""
        self._followed.append((name, text, read))

    def count_answer(self, status: int) -> None:
        """One HTTP answer; 499 stands for a client that went first."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._http.labels(str(status))
        counter.inc()
        if status == 499:
            self.client_gone.inc()

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads."""
        yield from self._histograms()
        prompt = CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens", labels=["model_name"])
        generation = CounterMetricFamily("vllm:generation_tokens", "Generated tokens", labels=["model_name"])
        success = CounterMetricFamily(
            "vllm:request_success", "Requests answered", labels=["model_name", "finished_reason"]
        )
        for name, model in self._models.items():
            prompt.add_metric([name], model.num_prompt_tokens)
            generation.add_metric([name], model.num_generation_tokens)
            for reason, count in model.num_success.items():
                success.add_metric([name, reason], count)
        yield from (prompt, generation, success)
        for name, text, read in self._followed:
            yield CounterMetricFamily(name, text, value=read())

    def _histograms(self) -> Iterator[Metric]:
        families = (
            ("vllm:time_to_first_token_seconds", "Time to the first token", "time_to_first_token"),
            ("vllm:inter_token_latency_seconds", "Time between two tokens of a choice", "inter_token_latency"),
            ("vllm:request_time_per_output_token_seconds", "Mean time per token of a request", "time_per_output_token"),
            ("vllm:e2e_request_latency_seconds", "Time from request to the end of its answer", "e2e_latency"),
        )
        for name, text, attribute in families:
            family = HistogramMetricFamily(name, text, labels=["model_name"])
            for model_name, model in self._models.items():
                histogram: FastHistogram = getattr(model, attribute)
                family.add_metric([model_name], histogram.cumulative(), histogram.total)
            yield family
