"""Rank 0's engine in front of the others: one plan for all ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.worker.engine.interface import Engine, Launched, PipelinedEngine, StepInput, StepOutput, Swaps
from services.worker.engine.isolation import EngineBroken
from services.worker.parallel.orders import Step, Swap, WarmUp
from services.worker.parallel.ranks import Ranks


class GroupEngine:
    """See services.worker.engine.interface.Engine. Every rank computes each step; rank 0 samples.

    close: ends the other ranks, so that this process may start others; the end of the process does so, too.
    """

    def __init__(self, engine: Engine, ranks: Ranks, close: Callable[[], None]) -> None:
        self.model = engine.model
        self.model_version = engine.model_version
        self.device = f"{engine.device} and {len(ranks.pids)} more"
        self.kernels = engine.kernels
        self.num_blocks = engine.num_blocks
        self.block_size = engine.block_size
        self.max_model_len = engine.max_model_len
        self.vocab_size = engine.vocab_size
        self.num_swap_slots = engine.num_swap_slots
        self.ranks = ranks
        self.close = close
        self._engine = engine
        if hasattr(engine, "device_uuid") and hasattr(engine, "memory_bytes"):  # metrics are those of rank 0's device
            self.device_uuid, self.memory_bytes = engine.device_uuid, engine.memory_bytes

    def warm_up(self) -> None:
        """All ranks at once. Raises EngineBroken whatever goes wrong."""
        with self.together("the warm-up"):
            self.ranks.tell(WarmUp())
            self._engine.warm_up()

    def step(self, batch: StepInput) -> StepOutput:
        """The step on all ranks. Raises EngineBroken whatever goes wrong."""
        with self.together("a step"):
            self.ranks.tell(Step.of(batch))
            output = self._engine.step(batch)
        return self.told(batch, output)

    def told(self, batch: StepInput, output: StepOutput) -> StepOutput:
        """The output with what is spoiled on any rank."""
        if output.errors or output.failed:
            output.spoiled_blocks = _blocks_of_failed(batch, output, self.block_size)
        return output

    def swap(self, swaps: Swaps) -> None:
        """Every rank moves its own part of the blocks; one that is not done yet comes to its next step later. Raises
        EngineBroken whatever goes wrong."""
        with self.together("a swap"):
            self.ranks.tell(Swap.of(swaps))
            self._engine.swap(swaps)

    @contextmanager
    def together(self, task: str) -> Iterator[None]:
        """A rank that is not where the others are cannot be told to try again."""
        try:
            yield
        except EngineBroken:
            self.ranks.wait_for_death()
            raise
        except Exception as error:
            raise EngineBroken(f"rank 0 failed in {task} of all ranks: {error!r}") from error


class PipelinedGroupEngine(GroupEngine):
    """Ranks on devices with queues: see PipelinedEngine. Tokens go to the other ranks without a detour by the host."""

    def __init__(self, engine: PipelinedEngine, ranks: Ranks, close: Callable[[], None]) -> None:
        super().__init__(engine, ranks, close)
        self._pipelined = engine

    def launch(self, batch: StepInput) -> Launched:
        """The step on all ranks. Raises EngineBroken whatever goes wrong."""
        with self.together("a step"):
            self.ranks.tell(Step.of(batch))
            return _GroupStep(self, batch, self._pipelined.launch(batch))


class _GroupStep:
    """See Launched."""

    def __init__(self, group: PipelinedGroupEngine, batch: StepInput, launched: Launched) -> None:
        self._group = group
        self._batch = batch
        self._launched = launched

    def wait(self) -> None:
        """Raises EngineBroken whatever goes wrong."""
        with self._group.together("a step"):
            self._launched.wait()

    def output(self) -> StepOutput:
        """Rank 0's. Raises EngineBroken whatever goes wrong."""
        with self._group.together("a step"):
            output = self._launched.output()
        return self._group.told(self._batch, output)


def _blocks_of_failed(batch: StepInput, output: StepOutput, block_size: int) -> list[int]:
    """All blocks of failed sequences: any rank's part of one may hold values that are not finite, and rank 0 sees its
    own part alone. A block too many costs no more than a miss of the cache."""
    failed = {*output.failed, *(int(batch.sampled[row]) for row in output.errors)}
    used = -(-batch.context_lens // block_size)
    return sorted({block for index in failed for block in batch.block_tables[index, : used[index]].tolist()})
