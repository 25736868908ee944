"""A worker of a simulated shard: the real cores, and an engine whose tokens come from entropy that nobody else has."""

import random
from array import array
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from services.worker.core.frame_window import Frame, FrameWindow
from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor, Step
from services.worker.core.plan_queue import PlanQueue
from services.worker.engine.interface import StepInput, StepOutput, Swaps
from shared.messages.codec import decoder, encode
from shared.messages.control import CacheReport, PlanGap, WorkerHeartbeat
from shared.messages.pipeline import EpochStart, Rows, StepPlan
from tests.shard.clockwork import Process

if TYPE_CHECKING:
    from tests.shard.shard import Shard

TICK_S = 0.05
HEARTBEAT_S = 0.2
BLOCK_SIZE = 4
MAX_MODEL_LEN = 128
MAX_NUM_SEQS = 4
MAX_NUM_BATCHED_TOKENS = 16
VOCAB_SIZE = 257
LETTERS = range(97, 113)
POISON = 1  # the last token of a prompt that kills whoever computes it
NOT_A_NUMBER = 2  # the last token of a prompt whose logits are no numbers

_decode_plan = decoder(EpochStart | StepPlan)


class SimKv:
    """KV memory that holds, for each token, the CRC of all tokens that it was computed on: what the rows' prefix
    hashes claim, found in the blocks that were really read."""

    def __init__(self, num_blocks: int, num_swap_slots: int) -> None:
        self._slots = array("L", bytes(8 * num_blocks * BLOCK_SIZE))
        self._swapped = [array("L", bytes(8 * BLOCK_SIZE)) for _ in range(num_swap_slots)]

    def swap(self, swaps: Swaps) -> None:
        """Between blocks and the swap space."""
        for block, slot in swaps.out.tolist():
            self._swapped[slot] = self._slots[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
        for slot, block in swaps.back.tolist():
            self._slots[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = self._swapped[slot]

    def write(self, batch: StepInput) -> list[int]:
        """Compute a step, reading each sequence's context through its block table; the CRC of each sequence."""
        slots, slot_of_token = self._slots, batch.slot_mapping.tolist()
        tokens, positions, bounds = batch.token_ids.tobytes(), batch.positions.tolist(), batch.cu_seqlens_q.tolist()
        crcs = []
        for index, first in enumerate(bounds[:-1]):
            before = positions[first] - 1
            crc = 0
            if before >= 0:
                crc = slots[int(batch.block_tables[index, before // BLOCK_SIZE]) * BLOCK_SIZE + before % BLOCK_SIZE]
            for token in range(first, bounds[index + 1]):
                crc = slots[slot_of_token[token]] = crc32(tokens[4 * token : 4 * token + 4], crc)
            crcs.append(crc)
        return crcs


@dataclass(slots=True)
class Running:
    """A step that the engine has been told to compute. read: CRC of the context of each sequence in the batch, as the
    engine found it."""

    plan: PlanColumns
    step: Step
    output: StepOutput
    read: list[int]
    is_poisoned: bool

    def num_wrong(self, frame: Rows) -> int:
        """Rows whose context was another one than they say."""
        step, batch = self.step, self.step.batch
        if batch is None or self.output.errors:
            return 0
        claimed = np.frombuffer(frame.prefix_hashes, dtype=np.uint32).tolist()
        sampled = [index for index in batch.sampled.tolist() if step.keep is None or step.keep[index]]
        return sum(one != self.read[index] for one, index in zip(claimed, sampled, strict=True))


class SimWorker(Process):
    """One worker incarnation. See services.worker.service and engine_thread."""

    def __init__(self, shard: "Shard", name: str, num_blocks: int) -> None:
        super().__init__(shard.world, name)
        self.shard = shard
        self.num_blocks = num_blocks
        self.leaving = False
        self.queue = PlanQueue()
        self.window = FrameWindow()
        self.num_swap_slots = crc32(name.encode()) % 3 * 5  # none, few, or more
        self._kv = SimKv(num_blocks, self.num_swap_slots)
        self._executor = PlanExecutor(name, num_blocks, BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE, self.num_swap_slots)
        self._depth = 1 + crc32(name.encode()) % 2  # steps that the engine takes before it has told the first's output
        self._running: deque[Running] = deque()
        self._waiting: PlanColumns | None = None  # for what runs to end
        self._started = 0
        self._finished = 0
        self._report_pending = False
        self._entropy = random.Random(self.world.random.getrandbits(64))
        self.every(TICK_S, self._tick)
        self.every(HEARTBEAT_S, self._heartbeat)

    def _tick(self) -> None:
        for frame in self.window.take_overdue(self.world.now):
            self._publish(frame)

    def _heartbeat(self) -> None:
        heartbeat = WorkerHeartbeat(
            worker=self.name,
            epoch=self.queue.epoch,
            next_plan=self.queue.next_plan,
            started=self._started,
            finished=self._finished,
            idle=not self._running and self._waiting is None and not self.queue.num_queued,
            leaving=self.leaving,
            model="m",
            model_version="1",
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            max_model_len=MAX_MODEL_LEN,
            num_swap_slots=self.num_swap_slots,
        )
        for scheduler in self.shard.schedulers:
            self.world.send(self, scheduler, scheduler.on_heartbeat, heartbeat)

    def on_reconnected(self) -> None:
        """See Process."""
        self._heartbeat()
        for frame in self.window.take_all(self.world.now):
            self._publish(frame)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def on_plan(self, data: bytes) -> None:
        """EpochStart or StepPlan."""
        message = _decode_plan(data)
        if isinstance(message, EpochStart):
            if self.queue.on_epoch_start(message) == "opened":
                self.window.open_epoch(message.epoch)
                self._started = self._finished = 0
            if self.queue.report_due:
                self.queue.report_due = False
                self._report_pending = True
        elif self.queue.on_plan(message) == "gap":
            gap = PlanGap(worker=self.name, epoch=self.queue.epoch, next_plan=self.queue.next_plan)
            for scheduler in self.shard.schedulers:
                self.world.send(self, scheduler, scheduler.on_gap, gap)
        self._feed()

    def _feed(self) -> None:
        if self._report_pending and not self._running:
            self._report_pending = False
            self._waiting = None
            block_ids, hashes = self._executor.open_epoch()
            report = CacheReport(worker=self.name, epoch=self.queue.epoch, block_ids=block_ids, block_hashes=hashes)
            for scheduler in self.shard.schedulers:
                self.world.send(self, scheduler, scheduler.on_report, report)
        while len(self._running) < self._depth and not self._report_pending and (plan := self._take()) is not None:
            step = self._executor.begin_ahead(plan) if self._running else self._executor.begin(plan)
            if step is None:
                self._waiting = plan
                return
            self.shard.num_ahead += bool(self._running)
            self._start(plan, step)

    def _take(self) -> PlanColumns | None:
        plan, self._waiting = self._waiting, None
        if plan is None and self.window.num_free > len(self._running):
            plan = self.queue.take()
        return plan

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _start(self, plan: PlanColumns, step: Step) -> None:
        """The engine computes it now; nobody hears of it before its time is over."""
        self._started = plan.step
        running = Running(plan, step, StepOutput(np.zeros(0, dtype=np.int32)), [], False)
        if step.swaps is not None:
            self._kv.swap(step.swaps)
            self.shard.num_swaps += len(step.swaps.back)
        if step.batch is not None:
            batch = step.batch
            if batch.carried is not None:
                batch = replace(batch, token_ids=batch.token_ids.copy())
                batch.learn(self._running[-1].output.tokens)
            running.is_poisoned = POISON in batch.token_ids
            running.output = self._output(batch)
            running.read = self._kv.write(batch)
        self._running.append(running)
        if len(self._running) == 1:
            self._await_first()

    def _await_first(self) -> None:
        self.world.after(self.shard.scenario.step_s, self.deliver, self._finish)

    def _finish(self) -> None:
        running = self._running.popleft()
        if running.is_poisoned:
            self.shard.num_poisoned += 1
            self.kill()
            return
        if self._running:
            self._await_first()
        frame = self._executor.finish(running.step, running.output)
        self.shard.num_wrong_contexts += running.num_wrong(frame)
        if running.plan.epoch == self.queue.epoch:
            self._finished = frame.step
            self.window.add(frame.step, encode(frame), self.world.now)
            self._publish(Frame(frame.step, encode(frame)))
        else:
            # as from a process that was stopped between computing and hearing of its fence
            self._publish_late(frame)
        self._feed()

    def _output(self, batch: StepInput) -> StepOutput:
        draw = self._entropy.choice
        tokens = np.array([draw(LETTERS) for _ in range(len(batch.sampled))], dtype=np.int32)
        output = StepOutput(tokens)
        last_tokens = batch.token_ids[batch.cu_seqlens_q[1:] - 1][batch.sampled]
        for row in np.flatnonzero(last_tokens == NOT_A_NUMBER).tolist():
            output.errors[row] = "the logits are not numbers"
            self.shard.num_row_errors += 1
        return output

    # ---- frames -----------------------------------------------------------------------------------------------------

    def _publish(self, frame: Frame) -> None:
        self.world.to_log(self, self._arrive, self.window.epoch, frame.step, frame.data)

    def _arrive(self, epoch: int, step: int, data: bytes) -> None:
        self.world.from_log(self, self._on_answer, epoch, step, self.shard.log.store_frame(data))

    def _on_answer(self, epoch: int, step: int, seq: int) -> None:
        if seq:
            self.window.on_stored(epoch, step, seq, self.world.now)
        else:
            self.window.on_refused("full")
        self._feed()

    def _publish_late(self, frame: Rows) -> None:
        self.world.to_log(self, self.shard.log.store_frame, encode(frame))
