"""Histograms of a worker as the measurements read them."""

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench.worker_metrics import Histogram, read_histogram
from services.worker.metrics import WorkerMetrics

NAME = "tokenbus_worker_engine_wait_seconds"


def scraped(metrics: WorkerMetrics) -> Histogram:
    registry = CollectorRegistry()
    registry.register(metrics)
    return read_histogram(generate_latest(registry).decode(), NAME)


def test_what_came_since_an_earlier_scrape() -> None:
    metrics = WorkerMetrics(CollectorRegistry())
    metrics.wait_seconds.observe(0.9)
    before = scraped(metrics)
    for _ in range(98):
        metrics.wait_seconds.observe(0.000007)
    metrics.wait_seconds.observe(0.0007)
    metrics.wait_seconds.observe(60.0)
    waits = scraped(metrics).since(before)
    assert waits.num_values == 100
    assert waits.total == pytest.approx(98 * 0.000007 + 0.0007 + 60)
    assert waits.quantile(0.5) == 0.00001
    assert waits.quantile(0.99) == 0.00075
    assert waits.quantile(1.0) == math.inf


def test_without_values_there_is_no_wait() -> None:
    assert scraped(WorkerMetrics(CollectorRegistry())).quantile(0.99) == 0


def test_a_name_that_nobody_exports() -> None:
    with pytest.raises(LookupError, match="tokenbus_nothing"):
        read_histogram("tokenbus_something_sum 1.0\n", "tokenbus_nothing")
