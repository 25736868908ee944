"""Metrics of the scheduler: read when scraped, so that a step costs nothing."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from services.scheduler.leader import Leader
from shared.log.fold import Fold


class Source(Protocol):
    """What the collector reads."""

    fold: Fold
    leader: Leader | None
    num_integrity_problems: int

    @property
    def tail_live(self) -> bool: ...

    @property
    def num_tail_resets(self) -> int: ...

    @property
    def log_fill(self) -> float: ...


class SchedulerMetrics(Collector):
    """vLLM's names where it has one; a standby shows zeros for what only the leader knows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        REGISTRY.register(self)

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        yield from self._of_leader()
        yield from self._of_fold()

    def _of_leader(self) -> Iterator[Metric]:
        leader = self._source.leader
        core = leader.core if leader else None
        yield _gauge("vllm:num_requests_running", "Sequences bound to a worker.", core.num_running if core else 0)
        yield _gauge("vllm:num_requests_waiting", "Sequences that wait.", core.num_waiting if core else 0)
        usage = core.kv_cache_usage if core else 0.0
        yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 is all.", usage)
        yield _counter("vllm:num_preemptions", "Preempted sequences.", core.num_preemptions if core else 0)
        queries, hits = (core.prefix_cache_queries, core.prefix_cache_hits) if core else (0, 0)
        yield _counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", queries)
        yield _counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", hits)
        overrun = core.num_overrun_rows if core else 0
        yield _counter("tokenbus_scheduler_overrun_rows", "Rows planned ahead of an end found elsewhere.", overrun)
        backlog = core.backlog if core else None
        num_queued, num_queued_tokens = (backlog.num_requests, backlog.num_tokens) if backlog else (0, 0)
        yield _gauge("tokenbus_scheduler_queued_requests", "Requests that wait for their first step.", num_queued)
        yield _gauge("tokenbus_scheduler_queued_tokens", "Tokens of their prompts.", num_queued_tokens)
        abandoned = leader.num_abandoned if leader else 0
        yield _counter("tokenbus_scheduler_abandoned", "Requests ended because nobody read them.", abandoned)
        turned_away = leader.num_turned_away if leader else 0
        yield _counter("tokenbus_scheduler_turned_away", "Requests that the full queue refused.", turned_away)
        yield _gauge("tokenbus_scheduler_leading", "1 if this scheduler leads its shard.", 1 if leader else 0)
        yield _gauge("tokenbus_scheduler_workers", "Workers of the shard.", len(leader.links) if leader else 0)
        yield _counter("tokenbus_scheduler_fences", "Workers fenced.", leader.num_fences if leader else 0)

        problems = self._source.num_integrity_problems
        yield _gauge("tokenbus_scheduler_integrity_problems", "Found in the last check while idle.", problems)

    def _of_fold(self) -> Iterator[Metric]:
        fold = self._source.fold
        yield _gauge("tokenbus_log_folded", "Log sequence of the newest record folded.", fold.seq)
        yield _gauge("tokenbus_log_live", "1 if the end of the log is known.", int(self._source.tail_live))
        yield _counter("tokenbus_log_tail_resets", "Starts of the log's tail.", self._source.num_tail_resets)
        yield _gauge("tokenbus_log_fill", "Share of the log's size limit in use.", self._source.log_fill)
        yield _gauge("tokenbus_log_requests", "Requests in the fold, finished ones among them.", len(fold.requests))
        events = CounterMetricFamily("tokenbus_log_events", "What the fold has counted.", labels=["event"])
        for event, count in sorted(fold.counts.items()):
            events.add_metric([event], count)
        yield events


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
