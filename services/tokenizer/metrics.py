"""Metrics of the tokenizer."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import REGISTRY

PREPARE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
PROMPT_BUCKETS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class TokenizerMetrics:
    """outcome: accepted, or the code (else the type) of the error that refused the request."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "tokenbus_tokenizer_requests", "Requests answered, by outcome.", ["outcome"], registry=registry
        )
        self.malformed = Counter(
            "tokenbus_tokenizer_malformed",
            "Messages dropped for their bytes or reply subject.",
            ["subject"],
            registry=registry,
        )
        self.retries = Counter(
            "tokenbus_tokenizer_retries", "Requests that came again while the first was at work.", registry=registry
        )
        self.cancels = Counter("tokenbus_tokenizer_cancels", "Cancels appended to the log.", registry=registry)
        self.attaches = Counter("tokenbus_tokenizer_attaches", "Native clients attached to text.", registry=registry)
        self.unknown_params = Counter(
            "tokenbus_tokenizer_unknown_params", "Unknown request parameters, ignored.", registry=registry
        )
        self.in_flight = Gauge("tokenbus_tokenizer_in_flight", "Requests at work in this process.", registry=registry)
        self.prompt_tokens = Histogram(
            "tokenbus_tokenizer_prompt_tokens", "Tokens of accepted prompts.", buckets=PROMPT_BUCKETS, registry=registry
        )
        self.prepare_s = Histogram(
            "tokenbus_tokenizer_prepare_seconds",
            "Checking, rendering and encoding one request.",
            buckets=PREPARE_BUCKETS_S,
            registry=registry,
        )
