"""The real scheduler, fold and plan executor around one engine, in one thread: what a worker is without its bus."""

from msgspec import structs

from bench.shard_messages import ready_worker
from services.scheduler.core.scheduler import Scheduler
from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.engine.interface import Engine, StepInput, StepOutput
from services.worker.engine.isolation import step_one_by_one
from shared.block_hash import HASH_BYTES
from shared.log.fold import Fold
from shared.log.state import SequenceState
from shared.messages.codec import encode
from shared.messages.control import WorkerHeartbeat
from shared.messages.packed import INT32, pack, unpack_tokens
from shared.messages.pipeline import Fence, Request, Rows
from shared.messages.sampling import Sampling

WORKER = "worker-test"
MAX_STEPS = 2000


class Scheduled:
    """Requests on one engine. num_blocks: those the scheduler may use; errors: by sequence id, as the client hears.
    num_failed_steps: steps that raised, and were computed sequence by sequence then."""

    def __init__(self, engine: Engine, num_blocks: int | None = None, max_num_batched_tokens: int = 512) -> None:
        self.engine = engine
        self.num_blocks = engine.num_blocks if num_blocks is None else num_blocks
        self.executor = PlanExecutor(
            WORKER,
            self.num_blocks,
            engine.block_size,
            engine.max_model_len,
            engine.vocab_size,
            engine.num_swap_slots,
        )
        self.fold = Fold()
        self.scheduler = Scheduler()
        self.errors: dict[int, str] = {}
        self.num_failed_steps = 0
        self.num_swapped_in = 0
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_requests = 0
        self._append("fence", Fence(kind="takeover", leader="test"))
        self.open_epoch()

    def open_epoch(self) -> None:
        """A fence, and what the worker reports then becomes cache (rule 10)."""
        self._append("fence", Fence(kind="worker", leader="test", worker=WORKER))
        blocks, hashes = self.executor.open_epoch()
        names = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        cached = zip(unpack_tokens(blocks), names, strict=True)
        self.scheduler.add_worker(self._heartbeat(), self.fold.epoch_of(WORKER), cached)

    def _compute(self, batch: StepInput | None) -> StepOutput:
        if batch is None:
            return StepOutput(self.executor.table.last_token[:0])
        try:
            return self.engine.step(batch)
        except Exception:
            self.num_failed_steps += 1
        return step_one_by_one(self.engine, batch)

    def named_blocks(self) -> set[int]:
        """Blocks that the worker would report, or the scheduler would find, as holding a known prefix."""
        ledger = self.executor.ledger
        (worker,) = self.scheduler.workers.values()
        known = {block for block in range(self.num_blocks) if ledger.hash_of(block) is not None}
        return known | {block.id for block in worker.blocks._blocks if block.hash is not None}

    def ask(self, prompt: list[int], sampling: Sampling) -> SequenceState:
        """Put a request into the log."""
        self._num_requests += 1
        request = Request(
            request_id=f"{self._num_requests:032x}",
            model=self.engine.model,
            model_version=self.engine.model_version,
            prompt_token_ids=pack(INT32, prompt),
            sampling=sampling,
            deadline_ns=2**62,
        )
        (sequence,) = self._append("req", request)
        assert self.scheduler.add(sequence) is None
        return sequence

    def run(self) -> None:
        """Steps until nothing is left to compute; nothing may be wrong afterwards."""
        for _ in range(MAX_STEPS):
            if not self.step():
                break
        assert self.scheduler.check_integrity() == []
        assert self.fold.counts["prefix_mismatched"] == 0

    def step(self) -> bool:
        """One plan, computed and folded; whether there was one."""
        plan = self.scheduler.schedule(WORKER)
        if plan is None:
            return False
        step = self.executor.begin(PlanColumns(plan))
        if step.swaps is not None:
            self.engine.swap(step.swaps)
            self.num_swapped_in += len(step.swaps.back)
        frame = self.executor.finish(step, self._compute(step.batch))
        self.errors |= {error.sequence: error.message for error in frame.errors}
        ended = [sequence for sequence in self._append("out", frame) if sequence.end is not None]
        self.scheduler.update(WORKER, frame.step)
        for sequence in ended:
            self.scheduler.end(sequence.id)
        return True

    def blocks_of(self, sequence: SequenceState) -> list[int]:
        """The KV blocks that a running sequence holds."""
        (worker,) = self.scheduler.workers.values()
        (running,) = (each for each in worker.running if each.id == sequence.id)
        return list(running.block_table)

    def _append(self, kind: str, record: Fence | Request | Rows) -> list[SequenceState]:
        return self.fold.apply(kind, encode(record), self.fold.seq + 1, 0).sequences

    def _heartbeat(self) -> WorkerHeartbeat:
        return structs.replace(
            ready_worker(
                WORKER,
                num_blocks=self.num_blocks,
                block_size=self.engine.block_size,
                max_num_seqs=16,
                max_num_batched_tokens=self._max_num_batched_tokens,
                max_model_len=self.engine.max_model_len,
            ),
            model=self.engine.model,
            model_version=self.engine.model_version,
            num_swap_slots=self.engine.num_swap_slots,
        )
