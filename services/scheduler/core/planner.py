"""Builds the plan of one step from the sequences that run at a worker."""

from array import array
from collections.abc import Callable

from services.scheduler.core.sequence import Sequence
from services.scheduler.core.worker_state import PlannedStep, WorkerState
from shared.messages.packed import INT32, UINT64, pack
from shared.messages.pipeline import NewSequence, StepPlan


def plan_step(
    worker: WorkerState, preempt: Callable[[Sequence], None], only: Sequence | None = None
) -> StepPlan | None:
    """The worker's next plan, noted as outstanding; None if nothing can be computed.

    Sequences with a single token to compute (those that stream) go first, one token each; what is left of
    max_num_batched_tokens goes to the longer ones in order, the last of them cut. Beside streams they get a share of it
    (num_prompt_tokens_beside_streams), so that under any load of prompts a stream waits for no longer than such a step.
    A sequence that needs a block when none is free takes those of the last in order, which may be itself: preempt(s)
    must release s. Only streams need blocks, since all blocks up to the known length are allocated when a sequence is
    bound, and sequences are visited in order: nobody visited before can be preempted.
    only: plan this suspect alone; without it a suspect is left out.
    """
    columns = _Columns(worker)
    if only is not None:
        columns.add(only, min(only.num_uncomputed_tokens, worker.max_num_batched_tokens))
        return columns.finish(solo=True)
    suspect = worker.suspect
    longer: list[Sequence] = []
    num_left = worker.max_num_batched_tokens
    for sequence in worker.running:
        if sequence.num_tokens >= sequence.max_num_tokens or sequence is suspect:
            continue
        if sequence.num_uncomputed_tokens > 1:
            longer.append(sequence)
            continue
        if sequence.num_computed_tokens >= sequence.num_slots and not _make_room(worker, sequence, preempt):
            continue
        columns.add(sequence, 1)
        num_left -= 1
    if num_left < worker.max_num_batched_tokens:
        num_waiting = sum(sequence.num_uncomputed_tokens for sequence in longer)
        num_left = min(num_left, worker.num_prompt_tokens_beside_streams(num_waiting))
    for sequence in longer:
        if num_left == 0:
            break
        num_scheduled = min(sequence.num_uncomputed_tokens, num_left)
        columns.add(sequence, num_scheduled)
        num_left -= num_scheduled
    return columns.finish(solo=False)


def _make_room(worker: WorkerState, sequence: Sequence, preempt: Callable[[Sequence], None]) -> bool:
    """Give the sequence a block; False if it had to be preempted itself."""
    while not worker.extend(sequence):
        victim = worker.running.last
        preempt(victim)
        if victim is sequence:
            return False
    return True


class _Columns:
    """The columns of a plan as they grow. The cost of a sequence does not depend on its length."""

    __slots__ = (
        "_new",
        "_new_blocks",
        "_num_given",
        "_num_new_blocks",
        "_num_scheduled",
        "_numbers",
        "_positions",
        "_sequences",
        "_starts",
        "_stops",
        "_token_ids",
        "_worker",
    )

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._sequences: list[Sequence] = []
        self._new: list[NewSequence] = []
        self._numbers: array[int] = array(UINT64)
        self._starts: array[int] = array(INT32)
        self._stops: array[int] = array(INT32)
        self._num_scheduled: array[int] = array(INT32)
        self._num_given: array[int] = array(INT32)
        self._positions: array[int] = array(INT32)
        self._num_new_blocks: array[int] = array(INT32)
        self._new_blocks: array[int] = array(INT32)
        self._token_ids: list[bytes] = []

    def add(self, sequence: Sequence, num_scheduled: int) -> None:
        """Compute the next num_scheduled tokens of the sequence; if they reach num_tokens, sample one more."""
        start = sequence.num_computed_tokens
        stop = start + num_scheduled
        if not sequence.loaded:
            self._load(sequence)
        num_given = 0
        if start < sequence.num_given_tokens:
            num_given = min(stop, sequence.num_given_tokens) - start
            self._token_ids.append(sequence.token_bytes(start, start + num_given))
        num_new_blocks = 0
        if stop > sequence.num_sent_blocks * self._worker.block_size:
            first = sequence.num_sent_blocks
            sequence.num_sent_blocks = self._worker.capacity.num_blocks_for(stop)
            num_new_blocks = sequence.num_sent_blocks - first
            self._new_blocks.extend(sequence.block_table[first : sequence.num_sent_blocks])
        position = -1
        if stop == sequence.num_tokens:
            position = stop - sequence.num_prompt_tokens
            sequence.num_tokens += 1
        sequence.num_computed_tokens = stop
        sequence.num_steps_in_flight += 1
        self._sequences.append(sequence)
        self._numbers.append(sequence.id)
        self._starts.append(start)
        self._stops.append(stop)
        self._num_scheduled.append(num_scheduled)
        self._num_given.append(num_given)
        self._positions.append(position)
        self._num_new_blocks.append(num_new_blocks)

    def _load(self, sequence: Sequence) -> None:
        """Everything the worker must know of a sequence, before its first step there."""
        sampling = sequence.state.sampling
        num_tokens = sequence.num_given_tokens
        sequence.num_sent_blocks = sequence.num_computed_tokens // self._worker.block_size
        sequence.loaded = True
        self._new.append(
            NewSequence(
                sequence=sequence.id,
                sampling=sampling,
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_tokens=num_tokens,
                num_cached_tokens=sequence.num_computed_tokens,
                block_ids=pack(INT32, sequence.block_table[: sequence.num_sent_blocks]),
                history=sequence.token_bytes(0, num_tokens) if sampling.has_penalties else b"",
                cache_key=sequence.cache_key,
            )
        )

    def finish(self, *, solo: bool) -> StepPlan | None:
        """The plan, if it computes anything."""
        if not self._sequences:
            return None
        worker = self._worker
        grown = sum(1 for position in self._positions if position >= 0)
        worker.num_uncomputed_tokens += grown - sum(self._num_scheduled)
        step = worker.next_step
        worker.next_step += 1
        swap_out, swap_in = worker.swap.take_transfers()
        worker.outstanding.append(PlannedStep(step, self._sequences, self._positions, self._stops, solo))
        plan = StepPlan(
            epoch=worker.epoch,
            step=step,
            new=self._new,
            sequences=pack(UINT64, self._numbers),
            start=pack(INT32, self._starts),
            num_scheduled=pack(INT32, self._num_scheduled),
            num_given=pack(INT32, self._num_given),
            position=pack(INT32, self._positions),
            token_ids=b"".join(self._token_ids),
            num_new_blocks=pack(INT32, self._num_new_blocks),
            new_blocks=pack(INT32, self._new_blocks),
            forget=pack(UINT64, worker.forget),
            swap_out=swap_out,
            swap_in=swap_in,
        )
        del worker.forget[:]
        return plan
