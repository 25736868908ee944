"""Metrics of the detokenizer: read when scraped."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from services.detokenizer.batches import Outgoing
from services.detokenizer.core.desk import Desk
from shared.log.fold import Fold


class Source(Protocol):
    """What the collector reads."""

    fold: Fold
    desk: Desk
    outgoing: Outgoing

    @property
    def tail_live(self) -> bool: ...

    @property
    def num_tail_resets(self) -> int: ...


class DetokenizerMetrics(Collector):
    """All of it under tokenbus_: vLLM has no process like this."""

    def __init__(self, source: Source) -> None:
        self._source = source
        REGISTRY.register(self)

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        source = self._source
        yield GaugeMetricFamily("tokenbus_detokenizer_readers", "Attached readers.", len(source.desk.attachments))
        yield CounterMetricFamily("tokenbus_detokenizer_batches", "Batches sent.", source.outgoing.num_batches)
        yield CounterMetricFamily("tokenbus_detokenizer_deltas", "Deltas sent.", source.outgoing.num_deltas)
        yield GaugeMetricFamily("tokenbus_log_folded", "Log sequence of the newest record folded.", source.fold.seq)
        yield GaugeMetricFamily("tokenbus_log_live", "1 if the end of the log is known.", int(source.tail_live))
        yield CounterMetricFamily("tokenbus_log_tail_resets", "Starts of the log's tail.", source.num_tail_resets)
