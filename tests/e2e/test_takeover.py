"""kill -9 of the leading scheduler: the standby leads, and what workers kept in KV memory is a cache hit (rule 10)."""

import asyncio
import time
from pathlib import Path

from tests.e2e.log_watch import SECOND_NS, LogWatch, watching
from tests.e2e.probes import metric
from tests.e2e.streams import all_running, connect
from tests.nodes import RunningNode, wrongs
from tests.waiting import until

LEADS_S = 2.0
SLACK_S = 2.0  # for a busy machine
NUM_STREAMS = 8
NUM_TOKENS = 1200  # 12 s at least: all of them outlast the take-over
NUM_WORDS = 200
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10", "--schedulers", "2")
CACHED_SHARE = 0.8  # all but the last block of each sequence, and what was not folded yet


def leader_of(node: RunningNode, watch: LogWatch) -> str:
    """Name of the process that leads, "" if it is not one of the node's any more."""
    pids = {pid: name for name, pid in node.pids("scheduler").items()}
    return pids.get(int(watch.fold.leader.split("-")[1]), "")


async def test_rule_10_a_standby_leads_within_two_seconds_and_finds_the_workers_caches(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", *OPTIONS) as node:
        async with watching(node.nats) as watch, connect(node.url) as client:
            bodies = [
                {
                    "model": "smollm2-135m",
                    "prompt": " ".join(f"{word}" for word in range(number, number + NUM_WORDS)),
                    "max_tokens": NUM_TOKENS,
                    "ignore_eos": True,
                }
                for number in range(NUM_STREAMS)
            ]
            tasks = await all_running(client, "/v1/completions", bodies)
            victim = leader_of(node, watch)
            killed_ns = time.time_ns()
            node.signal(victim)
            before = watch.fold.takeover
            await until(lambda: watch.fold.takeover > before, "a take-over")
            led_ns = next(at_ns for at_ns, fence in reversed(watch.fences) if fence.kind == "takeover")
            assert (led_ns - killed_ns) / SECOND_NS <= LEADS_S + SLACK_S
            answers = await asyncio.gather(*tasks)
            heir = leader_of(node, watch)
            assert {victim, heir} == {"scheduler-0", "scheduler-1"}, "the one that was killed took the lead again"
            queries = await asyncio.to_thread(metric, node, heir, "vllm:prefix_cache_queries_total")
            hits = await asyncio.to_thread(metric, node, heir, "vllm:prefix_cache_hits_total")
            assert queries >= NUM_STREAMS * NUM_WORDS, "the streams did not outlast the take-over: the test is blind"
            assert hits >= CACHED_SHARE * queries
        assert [answer.error for answer in answers if not answer.whole] == []
        assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
        report = await asyncio.to_thread(node.verify)
        assert wrongs(report) == {}
        for answer in answers:
            assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids
