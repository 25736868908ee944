"""Steps ahead that fail wherever they can, under the real scheduler's plans: no token is lost, repeated or wrong."""

import random
from dataclasses import dataclass

import pytest
import structlog

from services.worker import step_runner
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.step_runner import StepDone, StepRunner
from tests.worker.engines import BLOCK_SIZE, MemoryStep, PipelinedMemoryEngine
from tests.worker.test_with_scheduler import EOS, NUM_BLOCKS, Node, Shard, expected

NUM_SEEDS, NUM_MORE_SEEDS = 60, 2000
LATER_THAN_ALL = 2**31
MOST_FAILURES = 2  # in a row; more of them are the device's fault
GARBAGE = 999


class FailingEngine(PipelinedMemoryEngine):
    """Fails at random in launching, computing and telling. What fails while it computes leaves garbage behind, in its
    blocks and in the tokens that the step behind it goes on with. A sequence that has ended fails in what is computed
    of it in vain, with all its blocks, as on ranks that cannot see each other's."""

    num_blocks = NUM_BLOCKS

    def __init__(self, num_swap_slots: int, draw: random.Random, share: float) -> None:
        super().__init__(num_swap_slots)
        self.failures = dict.fromkeys(("launch", "wait", "output"), 0)
        self._draw = draw
        self._share = share
        self._in_a_row = 0

    def launch(self, batch: StepInput) -> "FailingStep | MemoryStep":
        """See PipelinedEngine."""
        if self._fails("launch"):
            raise MemoryError
        for where in ("wait", "output"):
            if self._fails(where):
                self.kv[batch.slot_mapping] = GARBAGE
                self._tokens[:] = GARBAGE
                return FailingStep(where)
        self._in_a_row = 0
        return super().launch(batch)

    def _fails(self, where: str) -> bool:
        if self._in_a_row == MOST_FAILURES or self._draw.random() >= self._share:
            return False
        self._in_a_row += 1
        self.failures[where] += 1
        return True

    def step(self, batch: StepInput) -> StepOutput:
        """See Engine."""
        assert batch.carried is None
        output = super().step(batch)
        last_tokens = batch.token_ids[batch.cu_seqlens_q[1:] - 1]
        for row, index in enumerate(batch.sampled.tolist()):
            if int(last_tokens[index]) in EOS:
                output.errors[row] = "not finite"
                used = -(-int(batch.context_lens[index]) // BLOCK_SIZE)
                output.spoiled_blocks += batch.block_tables[index, :used].tolist()
        return output


@dataclass
class FailingStep:
    """See Launched."""

    where: str

    def wait(self) -> None:
        if self.where == "wait":
            raise RuntimeError("a kernel failed")

    def output(self) -> StepOutput:
        raise RuntimeError("a copy failed")


class RunnerNode(Node):
    """With the runner of the engine's thread between executor and engine."""

    def __init__(self, name: str, num_swap_slots: int, draw: random.Random, share: float) -> None:
        super().__init__(name, num_swap_slots)
        self.engine: FailingEngine = FailingEngine(num_swap_slots, draw, share)
        self.runner = StepRunner(self.engine, self.executor, structlog.get_logger(), lambda: None)
        self.num_ahead = 0

    def begin(self) -> None:
        """The next plan."""
        plan = self.queue.take()
        if plan is None:
            return
        while not self.runner.start(plan, 0.0):
            self.finish()
        self.num_ahead += self.runner.is_full
        while self.runner.is_first_computed:
            self.finish()

    def finish(self) -> None:
        """The step that runs."""
        if len(self.runner):
            done = self.runner.finish_first(lambda: self.queue.epoch)
            if isinstance(done, StepDone):
                assert done.step_s >= 0
                self.frames.append(done.frame)

    def drop(self) -> None:
        """The epoch is over."""
        self.frames.clear()
        while len(self.runner):
            self.runner.finish_first(lambda: LATER_THAN_ALL)


def run(seed: int) -> tuple[int, int]:
    """Steps begun ahead, and failures."""
    draw = random.Random(seed)
    share = draw.choice([0.0, 0.05, 0.2])
    nodes: list[RunnerNode] = []

    def make_node(name: str, num_swap_slots: int) -> Node:
        nodes.append(RunnerNode(name, num_swap_slots, draw, share))
        return nodes[-1]

    shard = Shard(draw.choice([0, 3, 40]), make_node)
    wishes = [
        ([draw.randrange(3)] * 4 + list(range(40, 40 + draw.randrange(1, 31))), draw.randrange(1, 26))
        for _ in range(draw.randrange(1, 11))
    ]
    for number, (prompt, max_tokens) in enumerate(wishes):
        shard.ask(number, prompt, max_tokens)
    does = {"plan": shard.plan, "begin": RunnerNode.begin, "finish": RunnerNode.finish, "store": shard.store}
    for _ in range(3000):
        for node in nodes:
            for action in draw.choices(["plan", "begin", "begin", "finish", "store", "store"], k=draw.randrange(3)):
                does[action](node)
            if draw.random() < 0.004:
                shard.fence(node)
        if not shard.live:
            break
    assert shard.live == [], f"seed {seed}"
    for sequence, (prompt, max_tokens) in zip(shard.fold.sequences.values(), wishes, strict=True):
        assert list(sequence.tokens) == expected(prompt, max_tokens), f"seed {seed}"
    counts = shard.fold.counts
    assert shard.num_errors == counts["prefix_mismatched"] == counts["row_foreign"] == counts["row_missing"] == 0
    return sum(node.num_ahead for node in nodes), sum(sum(node.engine.failures.values()) for node in nodes)


def run_all(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_runner, "MAX_FAILURES_IN_A_ROW", LATER_THAN_ALL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        num_ahead, num_failures = (sum(counts) for counts in zip(*map(run, seeds), strict=True))
    finally:
        structlog.reset_defaults()
    assert num_ahead > 5 * len(seeds) and num_failures > len(seeds)


def test_every_sequence_is_what_a_plain_run_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(range(NUM_SEEDS), monkeypatch)


@pytest.mark.full
def test_so_it_is_in_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(range(NUM_SEEDS, NUM_SEEDS + NUM_MORE_SEEDS), monkeypatch)
