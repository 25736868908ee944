"""Engines for the worker's tests: what they compute depends on the KV they find, as a model's does."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor, Step
from services.worker.engine.interface import StepInput, StepOutput, Swaps
from shared.messages.pipeline import Rows, StepPlan
from shared.prefix_hash import extend
from tests.waiting import LIMIT_S

VOCAB_SIZE = 1000
BLOCK_SIZE = 4
NUM_BLOCKS = 256
MAX_MODEL_LEN = 128


class MemoryEngine:
    """Its KV cache holds the token ids themselves; a sampled token is a function of all ids that attention sees.

    failing: rows' last input ids that raise, whatever else is in the batch.
    """

    model = "memory"
    model_version = "1"
    device = "test"
    kernels = "none"
    num_blocks = NUM_BLOCKS
    block_size = BLOCK_SIZE
    max_model_len = MAX_MODEL_LEN
    vocab_size = VOCAB_SIZE

    def __init__(self, num_swap_slots: int = 0) -> None:
        self.num_swap_slots = num_swap_slots
        self.swapped = np.full((num_swap_slots, BLOCK_SIZE), -1, dtype=np.int32)
        self.num_swapped_in = 0
        self.kv = np.full(NUM_BLOCKS * BLOCK_SIZE, -1, dtype=np.int32)
        self.batches: list[StepInput] = []
        self.next_token: Callable[[list[int]], int] = next_token
        self.failing: set[int] = set()

    def warm_up(self) -> None:
        """Nothing to warm up."""

    def step(self, batch: StepInput) -> StepOutput:
        """Write the ids, then read each sampled sequence's context back through its block table."""
        if self.failing & set(batch.token_ids.tolist()):
            raise RuntimeError("a kernel failed")
        self.batches.append(batch)
        self.kv[batch.slot_mapping] = batch.token_ids
        tokens = [self.next_token(self.context(batch, int(index))) for index in batch.sampled]
        return StepOutput(np.array(tokens, dtype=np.int32))

    def swap(self, swaps: Swaps) -> None:
        """Ids between blocks and slots."""
        blocks = self.kv.reshape(-1, BLOCK_SIZE)
        self.swapped[swaps.out[:, 1]] = blocks[swaps.out[:, 0]]
        blocks[swaps.back[:, 1]] = self.swapped[swaps.back[:, 0]]
        self.num_swapped_in += len(swaps.back)

    def context(self, batch: StepInput, index: int) -> list[int]:
        """Ids of one sequence up to its context length."""
        length = int(batch.context_lens[index])
        blocks = batch.block_tables[index, : -(-length // BLOCK_SIZE)]
        slots = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)[:length]
        return [int(token) for token in self.kv[slots]]


class PipelinedMemoryEngine(MemoryEngine):
    """Computes a step when it is launched; nobody hears of it before may_tell is set. num_launched, num_told: steps."""

    def __init__(self, num_swap_slots: int = 0) -> None:
        super().__init__(num_swap_slots)
        self.may_tell = threading.Event()
        self.may_tell.set()
        self.num_launched = self.num_told = 0
        self._tokens = np.zeros(NUM_BLOCKS, dtype=np.int32)

    def launch(self, batch: StepInput) -> "MemoryStep":
        """See PipelinedEngine."""
        self.num_launched += 1
        if batch.carried is not None:
            batch = replace(batch, token_ids=batch.token_ids.copy())
            batch.learn(self._tokens)
        try:
            output = self.step(batch)
        except Exception as error:
            return MemoryStep(self, error)
        self._tokens[: len(output.tokens)] = output.tokens
        return MemoryStep(self, output)


class MemoryStep:
    """See Launched."""

    def __init__(self, engine: PipelinedMemoryEngine, outcome: StepOutput | Exception) -> None:
        self._engine = engine
        self._outcomes = [outcome]

    def wait(self) -> None:
        """Raises what went wrong, as a device does; and keeps nothing of it, as it would keep itself."""
        assert self._engine.may_tell.wait(LIMIT_S)
        self._engine.num_told += 1
        if isinstance(self._outcomes[0], Exception):
            raise self._outcomes.pop()

    def output(self) -> StepOutput:
        """What came of it."""
        (outcome,) = self._outcomes
        assert isinstance(outcome, StepOutput)
        return outcome


def next_token(context: list[int]) -> int:
    """What MemoryEngine samples after these ids."""
    return extend(0, np.array(context, dtype=np.int32).tobytes()) % VOCAB_SIZE


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    """The outputs of a correct run."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def make_executor() -> PlanExecutor:
    """An executor with the dimensions of MemoryEngine."""
    return PlanExecutor("worker-test", NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE)


def run_step(executor: PlanExecutor, engine: MemoryEngine, plan: StepPlan) -> Rows:
    """One step, from plan to frame."""
    pipeline = Pipeline(executor, engine)
    pipeline.begin(PlanColumns(plan))
    return pipeline.finish()


class Pipeline:
    """An engine as a device's queue: it computes a step as soon as that is begun, and tells its output later, when
    another step may be begun and computed already. num_ahead: steps that were."""

    def __init__(self, executor: PlanExecutor, engine: MemoryEngine) -> None:
        self.executor = executor
        self.engine = engine
        self.num_ahead = 0
        self._running: deque[tuple[Step, StepOutput]] = deque()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, plan: PlanColumns) -> list[Rows]:
        """The next step; frames of those that had to be finished first."""
        frames = []
        if len(self._running) == 2:
            frames.append(self.finish())
        step = self.executor.begin_ahead(plan) if self._running else None
        self.num_ahead += step is not None
        if step is None:
            frames += [self.finish() for _ in range(len(self._running))]
            step = self.executor.begin(plan)
        if step.swaps is not None:
            self.engine.swap(step.swaps)
        self._running.append((step, self._compute(step)))
        return frames

    def _compute(self, step: Step) -> StepOutput:
        if step.batch is None:
            return StepOutput(np.zeros(0, dtype=np.int32))
        batch = step.batch
        if batch.carried is not None:
            batch = replace(batch, token_ids=batch.token_ids.copy())
            batch.learn(self._running[-1][1].tokens)
        return self.engine.step(batch)

    def finish(self) -> Rows:
        """Of the step that was begun first."""
        return self.executor.finish(*self._running.popleft())

    def drop(self) -> None:
        """The epoch is over."""
        self._running.clear()
