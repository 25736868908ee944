"""One step: a plan in, the engine's input out; the engine's output in, the frame for the log out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.worker.core.block_ledger import BlockLedger
from services.worker.core.block_names import crc_chain, name_blocks, name_chain
from services.worker.core.decode_run import DecodeRun
from services.worker.core.plan_checks import find_bad_items
from services.worker.core.plan_columns import PlanColumns
from services.worker.core.prefix_crc import extend_all
from services.worker.core.sequence_table import SequenceTable
from services.worker.core.step_input import UNKNOWN, Items, build_step_input, only
from services.worker.engine.interface import StepInput, StepOutput, Swaps
from shared.messages.pipeline import RowError, RowLogprobs, Rows


@dataclass(slots=True)
class Step:
    """A step that is begun. batch: None when nothing is left to compute. errors: sequences refused by the checks.
    is_awaited: it computes a sequence that was held before, so the engine could have gone on with it any time earlier.
    run: the decode run that this step goes on with, if it was foretold. swaps: to be done before the step, also if
    there is nothing to compute. keep: which of the batch's sequences the step before has not ended, None for all; items
    are without the others. pending_slots: those of the batch's rows, if the table knows of them."""

    epoch: int
    number: int
    items: Items
    batch: StepInput | None
    errors: list[RowError]
    is_awaited: bool
    run: DecodeRun | None = None
    swaps: Swaps | None = None
    keep: NDArray[np.bool_] | None = None
    pending_slots: NDArray[np.int64] | None = None


class PlanExecutor:
    """The worker's whole state of one epoch: sequences and what the KV blocks hold.

    begin and finish alternate, or begin_ahead comes between them: then two steps are unfinished, and the first one is
    finished first. While a decode run lasts, its sequences' columns are newer there than in the table.
    """

    def __init__(
        self,
        worker: str,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        vocab_size: int,
        num_swap_slots: int = 0,
    ) -> None:
        self.worker = worker
        self.ledger = BlockLedger(num_blocks, num_swap_slots)
        self.table = SequenceTable(self.ledger, block_size, max_model_len, vocab_size)
        self._run: DecodeRun | None = None
        self._last: tuple[Items, StepInput] | None = None
        self._unfinished: list[Step] = []

    def open_epoch(self) -> tuple[bytes, bytes]:
        """Drop all sequences; what full blocks still hold, as columns of a CacheReport."""
        self._run = self._last = None
        self._unfinished.clear()
        self.table.clear()
        self.ledger.forget_slots()
        return self.ledger.report()

    def begin(self, plan: PlanColumns) -> Step:
        """Apply a plan to the sequences and lay out its step; a bad item costs its own sequence only."""
        run = self._find_run(plan)
        step = self._begin(plan) if run is None else self._go_on(plan, run)
        self._unfinished.append(step)
        return step

    def begin_ahead(self, plan: PlanColumns) -> Step | None:
        """begin while one step is unfinished; None, with nothing done, if the plan cannot be followed before it is.

        Which tokens that step samples does not matter to the layout: its rows go where they are needed. Only what moves
        its sequences away has to wait, and penalties, which need the ids themselves.
        """
        (running,) = self._unfinished
        if plan.has_swaps or self._moves(plan, running.items) or self._samples_with_history(running):
            return None
        return self.begin(plan)

    def _moves(self, plan: PlanColumns, items: Items) -> bool:
        """Whether the plan takes a sequence away that is being computed."""
        moved = [*plan.forget.tolist(), *(new.sequence for new in plan.plan.new)]
        return bool(moved) and bool(np.isin(np.array(moved, dtype=np.uint64), items.sequences).any())

    def _samples_with_history(self, running: Step) -> bool:
        histories = self.table.histories
        return bool(histories) and any(slot in histories for slot in running.items.slots.tolist())

    def _begin(self, plan: PlanColumns) -> Step:
        table = self.table
        errors: list[RowError] = []
        swaps = self._swap(plan) if plan.has_swaps else None
        for sequence in plan.forget.tolist():
            table.forget(sequence)
        num_loaded = 0
        for new in plan.plan.new:
            problem = table.load(new)
            if problem is None:
                num_loaded += 1
            else:
                errors.append(RowError(new.sequence, problem))
        slots = table.find(plan.sequences)
        if len(slots) and int(slots.min()) < 0:
            for sequence in plan.sequences[slots < 0].tolist():
                table.reject(sequence)
                errors.append(RowError(sequence, "the worker does not hold this sequence"))
            slots = table.find(plan.sequences)
        for item, reason in find_bad_items(plan, table, slots).items():
            table.finished[slots[item]] = True
            errors.append(RowError(int(plan.sequences[item]), reason))
        finished = table.finished[slots]
        items = Items(plan, slots, ~finished if finished.any() else None)
        step = Step(plan.epoch, plan.step, items, None, errors, is_awaited=len(items) > num_loaded, swaps=swaps)
        if len(items.new_blocks):
            table.add_blocks(items.slots, items.num_new_blocks, items.new_blocks)
        if len(items):
            step.batch = batch = build_step_input(items, table)
            table.add_step(items.slots, batch.context_lens)
            step.pending_slots = items.slots[batch.sampled]
            table.add_pending(step.pending_slots, batch.output_positions + 1)
            self._last = items, batch
        return step

    def _go_on(self, plan: PlanColumns, run: DecodeRun) -> Step:
        items, batch = run.advance(plan, is_ahead=bool(self._unfinished))
        return Step(plan.epoch, plan.step, items, batch, [], True, run)

    def _swap(self, plan: PlanColumns) -> Swaps:
        """The plan's transfers, which the ledger has noted. One that cannot be is left out: then the block holds
        nothing that is known, and a sequence that counts on it is refused."""
        limits = self.ledger.num_blocks, self.ledger.num_slots
        swaps = Swaps(_possible(plan.swap_out, limits), _possible(plan.swap_in, limits[::-1]))
        self.ledger.swap(swaps)
        return swaps

    def _find_run(self, plan: PlanColumns) -> DecodeRun | None:
        """The run that this plan goes on with; one that it does not go on with ends here."""
        is_plain = not (plan.plan.new or plan.plan.forget or plan.has_swaps)
        if self._run is None and self._last is not None and is_plain:
            items, batch = self._last
            if len(items) == plan.num_sequences and DecodeRun.can_begin(self.table, items, batch):
                self._run = DecodeRun(self.table, items, batch)
        self._last = None
        if self._run is not None and not self._run.is_foretold(plan):
            self._end_run(self._run)
        return self._run

    def _end_run(self, run: DecodeRun) -> None:
        running = [step for step in self._unfinished if step.batch is run.batch]
        run.flush(is_running=bool(running))
        for step in running:
            step.pending_slots = run.slots
        self._run = None

    def leave_out_ended(self, step: Step) -> None:
        """The newest step, whose computation begins after all once the step before is finished, needs none of the
        sequences that ended with that: they could only fail again. Afterwards there may be nothing left."""
        if step is not self._unfinished[-1]:
            raise ValueError("a step behind goes on with this one's rows")
        if step.batch is None or step.keep is None:
            return
        step.batch = only(step.batch, step.keep)[0] if step.keep.any() else None
        step.keep = None

    def finish(self, step: Step, output: StepOutput) -> Rows:
        """Take the engine's output into the sequences and lay out the frame."""
        if step is not self._unfinished[0]:
            raise ValueError("steps are finished in their order")
        del self._unfinished[0]
        if step.batch is None:
            return Rows(worker=self.worker, epoch=step.epoch, step=step.number, errors=step.errors)
        tokens = output.tokens.astype(np.int32, copy=False)
        if self._goes_as_foretold(step, output, tokens):
            frame = self._finish_foretold(step, step.batch, tokens, output.logprobs)
        else:
            frame = self._finish(step, step.batch, tokens, output)
        if self._unfinished:
            self._tell_next(self._unfinished[0], tokens)
        return frame

    def _tell_next(self, step: Step, tokens: NDArray[np.int32]) -> None:
        """The step that was begun ahead hears what the one before it made of its sequences."""
        table = self.table
        if step.batch is None:
            return
        step.batch.learn(tokens)
        if step.pending_slots is not None:
            table.pending_row[step.pending_slots] = np.arange(len(step.pending_slots))
        ended = table.finished[step.items.slots]
        if not ended.any():
            return
        if step.run is not None and step.run is self._run:
            self._end_run(step.run)
        step.keep = ~ended
        step.items.select(step.keep)

    def _goes_as_foretold(self, step: Step, output: StepOutput, tokens: NDArray[np.int32]) -> bool:
        if step.run is None or step.run is not self._run:
            return False
        return not (output.failed or output.errors) and int(tokens.view(np.uint32).max()) < self.table.vocab_size

    def _finish(self, step: Step, batch: StepInput, tokens: NDArray[np.int32], output: StepOutput) -> Rows:
        """The long way."""
        if step.run is not None and step.run is self._run:
            self._end_run(step.run)
        if step.pending_slots is not None:
            self.table.pending_row[step.pending_slots] = UNKNOWN
        failed = self._failed(batch, tokens, output)
        rows = np.arange(len(batch.sampled))
        if step.keep is not None:
            new_index = np.cumsum(step.keep) - 1
            failed = {int(new_index[index]): reason for index, reason in failed.items() if step.keep[index]}
            batch, rows = only(batch, step.keep)
        sampled = batch.sampled
        if failed:
            self._last = None
            for index, reason in failed.items():
                self.table.finished[step.items.slots[index]] = True
                step.errors.append(RowError(int(step.items.sequences[index]), reason))
            alive = ~np.isin(sampled, list(failed))
            sampled, rows = sampled[alive], rows[alive]
        self._extend(step.items, batch)
        if output.spoiled_blocks:
            self._forget_spoiled(batch, list(failed), output.spoiled_blocks)
        return self._frame(step, sampled, rows, tokens, output.logprobs)

    def _frame(
        self,
        step: Step,
        sampled: NDArray[np.int32],
        rows: NDArray[np.int64],
        tokens: NDArray[np.int32],
        all_logprobs: list[RowLogprobs | None],
    ) -> Rows:
        """sampled: indices of the step's items. rows: theirs of the engine's output."""
        slots, positions, tokens = step.items.slots[sampled], step.items.position[sampled], tokens[rows]
        prefix_hashes = self.table.prefix_hash[slots]
        self.table.add_outputs(slots, tokens, positions + 1)
        logprobs: list[RowLogprobs | None] = []
        if any(entry is not None for entry in all_logprobs):
            logprobs = [all_logprobs[row] for row in rows.tolist()]
        return Rows(
            worker=self.worker,
            epoch=step.epoch,
            step=step.number,
            sequences=step.items.sequences[sampled].tobytes(),
            positions=positions.tobytes(),
            tokens=tokens.tobytes(),
            prefix_hashes=prefix_hashes.tobytes(),
            logprobs=logprobs,
            errors=step.errors,
        )

    def _finish_foretold(
        self, step: Step, batch: StepInput, tokens: NDArray[np.int32], logprobs: list[RowLogprobs | None]
    ) -> Rows:
        """finish for a step of a run, without errors."""
        run = step.run
        if run is None:
            raise ValueError("the step is of no run")
        prefix_hashes, full = run.extend(batch)
        if len(full):
            self._fill_blocks(run.slots[full], batch.positions[full], prefix_hashes[full])
        if not run.add_outputs(batch, tokens):
            self._end_run(run)
            self.table.add_outputs(run.slots, tokens, batch.output_positions + 1)
        return Rows(
            worker=self.worker,
            epoch=step.epoch,
            step=step.number,
            sequences=run.key,
            positions=step.items.position.tobytes(),
            tokens=tokens.tobytes(),
            prefix_hashes=prefix_hashes.tobytes(),
            logprobs=logprobs if any(entry is not None for entry in logprobs) else [],
            errors=step.errors,
        )

    def _failed(self, batch: StepInput, tokens: NDArray[np.int32], output: StepOutput) -> dict[int, str]:
        """The sequences that the engine failed on, by batch index, by row, or by an id out of range, and why."""
        reasons = dict(output.failed)
        for row, reason in output.errors.items():
            reasons.setdefault(int(batch.sampled[row]), reason)
        if len(tokens) and not (0 <= int(tokens.min()) and int(tokens.max()) < self.table.vocab_size):
            for row in np.flatnonzero((tokens < 0) | (tokens >= self.table.vocab_size)).tolist():
                reasons.setdefault(int(batch.sampled[row]), f"the engine sampled {int(tokens[row])}, which is no token")
        return reasons

    # ---- what the KV holds now --------------------------------------------------------------------------------------

    def _extend(self, items: Items, batch: StepInput) -> None:
        """Take the computed tokens into prefix hashes, tails and the ledger."""
        if len(batch.token_ids) == len(items):
            self._extend_by_one(items.slots, items.start, batch.token_ids)
        else:
            single = items.num_scheduled == 1
            ones = np.flatnonzero(single)
            if len(ones):
                token_ids = batch.token_ids[batch.cu_seqlens_q[ones]]
                self._extend_by_one(items.slots[ones], items.start[ones], token_ids)
            for index in np.flatnonzero(~single).tolist():
                first, last = batch.cu_seqlens_q[index], batch.cu_seqlens_q[index + 1]
                self._extend_by_many(int(items.slots[index]), int(items.start[index]), batch.token_ids[first:last])

    def _forget_spoiled(self, batch: StepInput, failed: list[int], spoiled_blocks: list[int]) -> None:
        """failed: those whose errors the frame tells. A row that is dropped may fail, too: blocks of its sequence that
        were full before stay good, and the scheduler, which hears of no error, counts on them."""
        used = -(-batch.context_lens // self.table.block_size)
        theirs = {block for index in failed for block in batch.block_tables[index, : used[index]].tolist()}
        self.ledger.forget(np.array([block for block in spoiled_blocks if block in theirs], dtype=np.int32))

    def _extend_by_one(self, slots: NDArray[np.int64], start: NDArray[np.int32], token_ids: NDArray[np.int32]) -> None:
        table = self.table
        prefix_hashes = extend_all(table.prefix_hash[slots], token_ids)
        table.prefix_hash[slots] = prefix_hashes
        offsets = start % table.block_size
        table.tail[slots, offsets] = token_ids
        full = np.flatnonzero(offsets == table.block_size - 1)
        if len(full):
            self._fill_blocks(slots[full], start[full], prefix_hashes[full])

    def _extend_by_many(self, slot: int, start: int, token_ids: NDArray[np.int32]) -> None:
        """The tokens of one sequence's chunk, from the position `start` on."""
        table, size = self.table, self.table.block_size
        first, offset = divmod(start, size)
        crcs, table.prefix_hash[slot] = crc_chain(
            int(table.prefix_hash[slot]), token_ids.tobytes(), size - offset, size
        )
        if not len(crcs):
            table.tail[slot, offset : offset + len(token_ids)] = token_ids
            return
        token_ids = np.concatenate((table.tail[slot, :offset], token_ids))
        names = name_chain(table.parents[slot].tobytes(), token_ids[: len(crcs) * size].reshape(-1, size))
        parents = np.concatenate((table.parents[slot : slot + 1], names[:-1]))
        table.parents[slot] = names[-1]
        rest = token_ids[len(crcs) * size :]
        table.tail[slot, : len(rest)] = rest
        if not table.finished[slot]:
            self.ledger.record(table.block_tables[slot, first : first + len(crcs)], parents, names, crcs)

    def _fill_blocks(
        self, slots: NDArray[np.int64], positions: NDArray[Any], prefix_hashes: NDArray[np.uint32]
    ) -> None:
        """The blocks of the tokens at these positions are full, one for each slot; a sequence with an error leaves no
        known block behind."""
        table = self.table
        parents = table.parents[slots]
        names = name_blocks(parents, table.tail[slots])
        table.parents[slots] = names
        blocks = table.block_tables[slots, positions // table.block_size]
        held = ~table.finished[slots]
        self.ledger.record(blocks[held], parents[held], names[held], prefix_hashes[held])


def _possible(pairs: NDArray[np.int32], limits: tuple[int, int]) -> NDArray[np.int32]:
    """Those within the limits, of several to one destination the last."""
    pairs = pairs[((pairs >= 0) & (pairs < np.array(limits))).all(axis=1)]
    _, last = np.unique(pairs[::-1, 1], return_index=True)
    return pairs[::-1][np.sort(last)]
