"""A whole shard on a virtual clock: real cores, a lossy network, kills and pauses drawn from a seed.

Tokens come from each worker's own entropy, so that the log is clean only if the protocol is right. A failing seed is in
the test's name and replays.
"""

from collections import Counter

import pytest

from shared.log.verify import Report, verify
from shared.messages.codec import encode
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import End, Request
from shared.messages.sampling import Sampling
from tests.shard.actors import ShardView, SimDetokenizer, SimScheduler, SimWorker
from tests.shard.clockwork import START_NS, World, now_or_never

NUM_REQUESTS = 30
RESTART_S = 0.5


class SimulatedShard:
    """Two schedulers, two workers, two detokenizers, and requests at random moments."""

    def __init__(self, seed: int, *, loss: float, fencing: bool = True, max_records: int | None = None) -> None:
        self.world = World(seed, loss, max_records)
        self.fencing = fencing
        self.view = ShardView()
        self.view.late_frames = True
        self.view.trims = max_records is not None
        self._counter: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        for kind in ("scheduler", "scheduler", "worker", "worker", "detokenizer", "detokenizer"):
            self.start(kind)
        self.request_ids: list[str] = []
        for number in range(NUM_REQUESTS):
            self.world.after(self.world.random.uniform(0, 8), lambda number=number: self.ask(number))  # type: ignore[misc]

    def start(self, kind: str) -> None:
        """Start a process of a kind under a new name."""
        self._counter[kind] += 1
        name = f"{kind}-{self._counter[kind]}"
        if kind == "scheduler":
            self.view.schedulers.append(SimScheduler(self.world, name, self.view, fencing=self.fencing))
        elif kind == "worker":
            self.view.workers.append(SimWorker(self.world, name, self.view))
        else:
            self.view.detokenizers.append(SimDetokenizer(self.world, name, self.view, fencing=self.fencing))

    def members(self, kind: str) -> list[SimScheduler] | list[SimWorker] | list[SimDetokenizer]:
        """The living processes of a kind; those that lost the lead are started anew first."""
        group = {
            "scheduler": self.view.schedulers,
            "worker": self.view.workers,
            "detokenizer": self.view.detokenizers,
        }[kind]
        return group  # type: ignore[return-value]

    def ask(self, number: int) -> None:
        """A client's request: of random length, some with stop strings, some cancelled later."""
        draw = self.world.random
        request_id = f"{number:032x}"
        request = Request(
            request_id=request_id,
            model="m",
            model_version="1",
            prompt_token_ids=pack_tokens([draw.randrange(97, 123) for _ in range(draw.choice([1, 5, 20, 60]))]),
            sampling=Sampling(
                max_tokens=draw.randint(1, 40),
                n=draw.choice([1, 1, 1, 2]),
                stop=("ab",) if draw.random() < 0.3 else (),
                eos_token_ids=(113,) if draw.random() < 0.3 else (),
            ),
            deadline_ns=START_NS + int((self.world.now + 200) * 1e9),
        )
        now_or_never(self.world.log.append("req", encode(request), f"req-{request_id}"))
        self.request_ids.append(request_id)
        self.world.appended()
        if draw.random() < 0.2:
            self.world.after(draw.uniform(0, 3), lambda: self.cancel(request_id))

    def cancel(self, request_id: str) -> None:
        """The client is gone."""
        end = End(request_id=request_id, reason="cancel")
        now_or_never(self.world.log.append("end", encode(end), f"cancel-{request_id}"))
        self.world.appended()

    def hurt(self, fault: str) -> None:
        """One fault on one random process."""
        draw = self.world.random
        kind = fault.partition("-")[2]
        self.revive()
        victims = list(self.members(kind))
        if not victims:
            return
        victim = draw.choice(victims)
        self.faults[fault] += 1
        if fault.startswith("kill"):
            victim.kill()
            self.world.after(RESTART_S, self.revive)
        else:
            victim.pause(draw.uniform(0.95, 1.45) if fault.startswith("blink") else draw.uniform(2, 4))

    def revive(self) -> None:
        """What a supervisor does."""
        for kind in ("scheduler", "worker", "detokenizer"):
            group = self.members(kind)
            dead = [process for process in group if not process.alive]
            for process in dead:
                group.remove(process)  # type: ignore[arg-type]
                self.start(kind)

    @property
    def finished(self) -> bool:
        """Whether every request has its outcome in some detokenizer's fold."""
        if len(self.request_ids) < NUM_REQUESTS:
            return False
        states = self.view.detokenizers[0].fold
        return all(
            request_id in states.tombstones
            or (request_id in states.requests and states.requests[request_id].done is not None)
            for request_id in self.request_ids
        )

    def run(self, faults: list[str], limit_s: float = 120.0) -> Report:
        """Let it all happen; the report is the verifier's."""
        for _ in range(8):
            self.world.after(self.world.random.uniform(1, 10), lambda: self.hurt(self.world.random.choice(faults)))
        self.world.after(11, self.revive)
        moment = 0.0
        while not self.finished and moment < limit_s:
            moment += 1.0
            self.world.run(moment)
            self.revive()
        return now_or_never_verify(self.world)


def now_or_never_verify(world: World) -> Report:
    return now_or_never(verify(world.log))


FAULTS = [
    "kill-scheduler",
    "kill-worker",
    "kill-detokenizer",
    "blink-scheduler",
    "blink-worker",
    "blink-worker",
    "stop-worker",
    "stop-scheduler",
    "stop-detokenizer",
]


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_lost_under_faults_and_loss(seed: int) -> None:
    shard = SimulatedShard(seed, loss=0.02)
    report = shard.run(FAULTS)
    assert shard.finished, f"unfinished after {shard.world.now:.0f} s: {dict(shard.faults)}"
    assert report.clean, {name: getattr(report, name) for name in report.__struct_fields__ if name != "requests"}
    assert len(report.requests) == NUM_REQUESTS
    for leader in (scheduler.leader for scheduler in shard.view.schedulers):
        if leader is not None:
            assert leader.core.check_integrity() == []


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_nothing_is_lost_under_faults_and_loss_many_seeds(seed: int) -> None:
    shard = SimulatedShard(seed, loss=0.02)
    report = shard.run(FAULTS)
    assert shard.finished and report.clean


def test_without_fencing_pauses_break_streams() -> None:
    """The negative control: the same world with epochs ignored must not pass."""
    broken = 0
    for seed in range(12):
        shard = SimulatedShard(seed, loss=0.02, fencing=False)
        report = shard.run(["blink-worker", "blink-scheduler"], limit_s=40.0)
        broken += not (report.clean and shard.finished)
    assert broken >= 3
