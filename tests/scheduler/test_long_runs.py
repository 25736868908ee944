"""Long random runs with fixed seeds: busier than what hypothesis finds, and the same each time."""

import random
from collections import Counter

import pytest

from tests.scheduler.simulated_shard import SimulatedShard

PREFIXES: list[list[int]] = [[], [100] * 8, [100] * 8 + [101] * 8, list(range(200, 230))]
OPERATIONS = ["schedule", "execute", "fold"] * 12 + ["submit"] * 5 + ["end", "stop", "leave", "stay", "stay"]
DISTURBANCES = ["fence", "death", "take_over", "join", "lose_row"]


class LongRun:
    """Applies one random operation after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard = SimulatedShard(seed=seed, watermark=self.rng.choice((0.0, 0.1)))
        self.limits: dict[str, int | bool] = {
            "num_blocks": self.rng.choice((16, 24, 40)),
            "max_num_batched_tokens": self.rng.choice((8, 16, 64)),
            "max_num_seqs": self.rng.choice((4, 8)),
            "max_model_len": 56,
            "enable_prefix_caching": seed % 4 != 0,
        }
        self.num_joined = 0
        self.max_live = 24
        self.seen: Counter[str] = Counter()

    def operate(self) -> None:
        while len(self.shard.workers) < 2:
            self.join("")
        operation = self.rng.choice(OPERATIONS) if self.rng.random() < 0.99 else self.rng.choice(DISTURBANCES)
        getattr(self, operation)(self.rng.choice(sorted(self.shard.workers)))

    def schedule(self, name: str) -> None:
        self.shard.schedule(name)

    def execute(self, name: str) -> None:
        self.shard.execute(name)

    def fold(self, name: str) -> None:
        self.shard.fold_frame(name)

    def leave(self, name: str) -> None:
        self.shard.scheduler.set_accepting(name, False)

    def stay(self, name: str) -> None:
        self.shard.scheduler.set_accepting(name, True)

    def fence(self, name: str) -> None:
        self.shard.fence(name)

    def death(self, name: str) -> None:
        self.shard.fence(name, died=True)

    def join(self, _: str) -> None:
        if len(self.shard.workers) < 4:
            self.num_joined += 1
            self.shard.join(f"w{self.num_joined}", **self.limits)

    def take_over(self, _: str) -> None:
        self.count()
        self.shard.take_over()

    def submit(self, _: str) -> None:
        rng = self.rng
        if len(self.shard.live) < self.max_live:
            self.shard.submit(
                rng.choice(PREFIXES) + [rng.randrange(100, 103) for _ in range(rng.randrange(1, 9))],
                rng.randrange(1, 24),
                priority=rng.randrange(2),
                n=rng.choice((1, 1, 2)),
                presence_penalty=rng.choice((0.0, 1.0)),
                eos_token_ids=rng.choice(((), tuple(range(60)))),
            )

    def end(self, _: str) -> None:
        if live := self.shard.live:
            self.shard.end(self.rng.choice(live), "cancel")

    def stop(self, _: str) -> None:
        if live := self.shard.live:
            state = self.rng.choice(live)
            self.shard.end(state, "stop_string", max(0, len(state.tokens) - self.rng.randrange(3)))

    def lose_row(self, name: str) -> None:
        if live := self.shard.live:
            self.shard.workers[name].withhold.add(self.rng.choice(live).id)

    def count(self) -> None:
        scheduler = self.shard.scheduler
        self.seen["preempted"] += scheduler.num_preemptions
        self.seen["moved"] += scheduler.num_moves
        self.seen["hit"] += scheduler.prefix_cache_hits


@pytest.mark.parametrize("seed", range(12))
def test_long_run(seed: int) -> None:
    run = LongRun(seed)
    for number in range(6000):
        if number % 300 == 0:
            run.max_live = run.rng.choice((3, 6, 24))
        run.operate()
        if number % 7 == 0:
            run.shard.check()
    run.join("")
    for name in run.shard.workers:
        run.stay(name)
    run.shard.run()
    run.shard.check()
    run.count()
    assert run.seen["preempted"] and run.seen["moved"]
    assert bool(run.seen["hit"]) == run.limits["enable_prefix_caching"]
    assert run.shard.scheduler.num_running == run.shard.scheduler.num_waiting == 0
