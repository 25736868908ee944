"""While a long prompt prefills in chunks, running streams go on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.fold import Change, Fold
from shared.messages.pipeline import Rows
from tests.e2e.streams import all_running, connect, stream
from tests.nodes import RunningNode

MODEL = "smollm2-135m"
NUM_STREAMS = 4
NUM_PROMPT_TOKENS = 7800


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class StepTimes:
    """Log times (s) of a node's frames, in order."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.frames_s: list[float] = []

    def on_record(self, change: Change) -> None:
        if isinstance(change.record, Rows) and change.counted:
            self.frames_s.append(self.fold.clock_ns / 1e9)

    async def read(self, nats_url: str) -> None:
        bus = await Bus.connect(nats_url, "test-1")
        log = await NatsLog.open(bus, "s0")
        tail = log.tail(self.fold, self.on_record, lambda: None)
        await tail.start()
        await tail.stop()
        await bus.close()


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_itl_stays_under_two_steps_of_one_chunk_while_8k_tokens_prefill(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", "--engine", "cpu", "--max-num-batched-tokens", "256") as node:
        async with connect(node.url) as client:
            short: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "min_tokens": 400, "ignore_eos": True}
            bodies = [{**short, "prompt": f"Story {n}:"} for n in range(NUM_STREAMS)]
            streams = await all_running(client, "/v1/completions", bodies)
            long = {"model": MODEL, "prompt": [1000 + n % 20000 for n in range(NUM_PROMPT_TOKENS)], "max_tokens": 2}
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            answer = await stream(client, "/v1/completions", long)
            prefilled_s = answer.arrivals_s[0]
            others = await asyncio.gather(*streams)
        steps = StepTimes()
        await steps.read(node.nats)
    assert answer.whole, answer.error
    during = [
        later - earlier
        for other in others
        for earlier, later in zip(other.arrivals_s, other.arrivals_s[1:], strict=False)
        if begun_s <= earlier and later <= prefilled_s
    ]
    num_chunks = NUM_PROMPT_TOKENS // 256
    assert len(during) >= 0.9 * NUM_STREAMS * (num_chunks - 2), "a stream did not get its token in each chunk's step"
    gaps = [later - earlier for earlier, later in zip(steps.frames_s, steps.frames_s[1:], strict=False)]
    chunk_steps_s = sorted(gaps)[-num_chunks:]
    assert percentile(during, 0.99) < 2 * percentile(chunk_steps_s, 0.99)
    assert percentile(during, 0.5) < 2 * percentile(chunk_steps_s, 0.5)
