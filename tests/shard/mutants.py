"""Planted bugs of the protocol. A simulation that does not see them proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from services.detokenizer.core.desk import Desk
from services.detokenizer.core.ends import end_of
from services.scheduler.core import readership
from services.scheduler.core.block_manager import BlockManager
from services.scheduler.core.lifetimes import Lifetimes
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.worker_link import WorkerLink
from services.scheduler.housekeeping import Retention
from services.worker.core.frame_window import FrameWindow
from shared.log import snapshot
from shared.log.fold import Fold
from shared.reading.attachments import Attachments
from tests.shard.scenario import Scenario
from tests.shard.sim_scheduler import SimScheduler

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@dataclass(slots=True, frozen=True)
class Mutant:
    """plant puts the bug in. scenario: what must happen for it to matter."""

    plant: Plant
    scenario: Scenario


PAUSES = ("blink-worker", "blink-scheduler", "stop-worker")

MUTANTS: dict[str, Mutant] = {}


def mutant(**happens: Any) -> Callable[[Plant], Plant]:
    """Register a planted bug under its function's name. happens: fields of its scenario."""

    def register(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = Mutant(plant, Scenario(**happens))
        return plant

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While it lasts, the bug is in the code."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name].plant(patch)
        yield


# ---- epochs and take-overs (rules 1 and 2) ------------------------------------------------------------------------


@mutant(faults=PAUSES)
def rows_of_older_epochs_count(patch: Patch) -> None:
    """A fenced worker that comes back goes on writing."""

    real = Fold._is_due

    def is_due(self: Fold, frame: Any) -> bool:
        return real(self, frame) or bool(frame.epoch < self.epoch_of(frame.worker))

    patch.setattr(Fold, "_is_due", is_due)


@mutant(faults=PAUSES)
def a_worker_fence_ends_no_epoch(patch: Patch) -> None:
    patch.setattr(Fold, "epoch_of", lambda self, worker: self.takeover)


@mutant(faults=("blink-scheduler", "lag-scheduler", "lag-scheduler"), num_faults=12)
def the_leader_leads_before_it_has_folded_its_take_over(patch: Patch) -> None:
    """It trusts the acknowledgement, and misses what was stored before its fence."""
    real = SimScheduler._on_fence_answer

    def on_fence_answer(self: SimScheduler, fence: Any, stored: int | None) -> None:
        if stored is not None and fence.kind == "takeover" and self.leader is None:
            self.fold.takeover, self.fold.leader = stored, self.name
            self.fold.worker_fences.clear()
            self.fold.next_steps.clear()
            self.lead(self.world.now)
        real(self, fence, stored)

    real_change = SimScheduler.on_change

    def on_change(self: SimScheduler, change: Any) -> None:
        if self.leader is None or getattr(change.record, "leader", "") != self.name:
            real_change(self, change)

    patch.setattr(SimScheduler, "_on_fence_answer", on_fence_answer)
    patch.setattr(SimScheduler, "on_change", on_change)


@mutant(faults=("blink-scheduler",))
def a_leader_stays_after_another_took_over(patch: Patch) -> None:
    real = SimScheduler.on_change

    def on_change(self: SimScheduler, change: Any) -> None:
        if self.leader is None or getattr(change.record, "kind", "") != "takeover":
            real(self, change)

    patch.setattr(SimScheduler, "on_change", on_change)


# ---- frames (rules 3 and 4) ---------------------------------------------------------------------------------------


@mutant(num_faults=0, loss=0.05)
def frames_are_released_out_of_order(patch: Patch) -> None:
    def release(self: FrameWindow, now_s: float) -> None:
        for frame in [frame for frame in self._frames if frame.copies]:
            self._frames.remove(frame)
            self._sent_s = now_s

    patch.setattr(FrameWindow, "_release", release)


@mutant(num_faults=0, loss=0.05)
def any_copy_of_a_frame_releases_it(patch: Patch) -> None:
    """The first unacknowledged frame waits, but the order of the copies in the log is not looked at."""

    def release(self: FrameWindow, now_s: float) -> None:
        while self._frames and self._frames[0].copies:
            self._frames.popleft()
            self._sent_s = now_s

    patch.setattr(FrameWindow, "_release", release)


@mutant(num_faults=0, loss=0.05)
def frames_are_never_sent_again(patch: Patch) -> None:
    patch.setattr(FrameWindow, "take_overdue", lambda self, now_s: [])
    patch.setattr(FrameWindow, "take_all", lambda self, now_s: [])
    patch.setattr(FrameWindow, "num_free", property(lambda self: 8))


@mutant(num_faults=0, loss=0.05)
def the_fold_takes_frames_over_a_gap(patch: Patch) -> None:
    def is_due(self: Fold, frame: Any) -> bool:
        return bool(frame.epoch == self.epoch_of(frame.worker) and frame.step >= self.next_steps.get(frame.worker, 1))

    patch.setattr(Fold, "_is_due", is_due)


@mutant(faults=("kill-worker",))
def a_silent_worker_is_not_fenced(patch: Patch) -> None:
    patch.setattr(WorkerLink, "fence_reason", lambda self, now: None)


# ---- ends and outcomes (rules 6, 7, 13) ---------------------------------------------------------------------------


@mutant(num_faults=0, num_requests=80)
def outcomes_bill_what_was_not_sent(patch: Patch) -> None:
    """Done at what is folded, without a look at the stop string before it."""

    def report_done(self: Desk, state: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("services.detokenizer.core.desk.end_of", lambda sequence, view: end_of(sequence, None))
            real(self, state)

    real = Desk._report_done
    patch.setattr(Desk, "_report_done", report_done)


@mutant(num_faults=0)
def outcomes_are_one_token_short(patch: Patch) -> None:
    real = Desk._report_done

    def report_done(self: Desk, state: Any) -> None:
        before = len(self.outbox.records)
        real(self, state)
        for index in range(before, len(self.outbox.records)):
            done, message_id = self.outbox.records[index]
            positions = tuple(max(0, position - 1) for position in done.positions)  # type: ignore[union-attr]
            short = type(done)(request_id=done.request_id, positions=positions, reasons=done.reasons)  # type: ignore
            self.outbox.records[index] = short, message_id

    patch.setattr(Desk, "_report_done", report_done)


@mutant(faults=("kill-detokenizer", "kill-gateway"))
def only_the_readers_detokenizer_writes_outcomes(patch: Patch) -> None:
    patch.setattr(Desk, "_note_end", lambda self, request_id, now: None)


@mutant(num_faults=0, leaving=0.8)
def a_later_end_wins(patch: Patch) -> None:
    def end(self: Fold, record: Any, state: Any, change: Any) -> None:
        for sequence in state.sequences:
            sequence.cut(len(sequence.tokens), record.reason)
            change.sequences.append(sequence)

    patch.setattr(Fold, "_end", end)


@mutant(num_faults=0, repeats=0.5)
def repeated_requests_are_admitted_again(patch: Patch) -> None:
    real = Fold._request

    def request(self: Fold, record: Any, change: Any) -> None:
        self.requests.pop(record.request_id, None)
        real(self, record, change)

    patch.setattr(Fold, "_request", request)


# ---- blocks and scheduling (rules 8 to 10, 20) --------------------------------------------------------------------


@mutant(num_faults=0, shared_prefixes=0.8, num_requests=48)
def reused_blocks_keep_their_names(patch: Patch) -> None:
    """What was evicted is still found, in a block that holds something else by now."""

    def take(self: BlockManager) -> Any:
        block = self._free.pop_oldest()
        block.ref_count = 1
        return block

    patch.setattr(BlockManager, "_take", take)


@mutant(num_faults=0, shared_prefixes=0.8, num_requests=48)
def blocks_are_freed_while_they_are_read(patch: Patch) -> None:
    """A block that two sequences share is given away with the first of them."""

    def free(self: BlockManager, table: Any) -> None:
        for block_id in table:
            block = self._blocks[block_id]
            if block.ref_count:
                block.ref_count = 0
                self._free.push_oldest(block)

    patch.setattr(BlockManager, "free", free)


@mutant(faults=("kill-worker", "stop-worker"), num_faults=12, step_s=0.1)
def sequences_in_flight_are_lost_with_their_worker(patch: Patch) -> None:
    real = Scheduler.remove_worker

    def remove_worker(self: Scheduler, name: str, *, died: bool = False) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            for sequence in list(worker.settling.values()):
                worker.settling.pop(sequence.id)
        real(self, name, died=died)

    patch.setattr(Scheduler, "remove_worker", remove_worker)


@mutant(num_faults=0, poison=0.1)
def poison_is_never_given_up(patch: Patch) -> None:
    patch.setattr("services.scheduler.core.scheduler.MAX_SOLO_DEATHS", 10**9)


@mutant(num_faults=0, poison=0.1)
def batch_mates_of_poison_are_given_up_with_it(patch: Patch) -> None:
    real = Scheduler.remove_worker

    def remove_worker(self: Scheduler, name: str, *, died: bool = False) -> None:
        worker = self.workers.get(name)
        mates = [s for step in worker.outstanding for s in step.sequences] if worker is not None and died else []
        real(self, name, died=died)
        for sequence in mates:
            if sequence.id in self._sequences:
                self._judge(sequence, "quarantined", "died with it")

    patch.setattr(Scheduler, "remove_worker", remove_worker)


# ---- snapshots and trimming (rule 11) -----------------------------------------------------------------------------


@mutant(max_records=100)
def the_log_is_trimmed_beyond_its_snapshot(patch: Patch) -> None:
    def trimmable(self: Retention, snapshot_seq: int, now: float, *, ignore_age: bool) -> int:
        return snapshot_seq + 5

    patch.setattr(Retention, "trimmable", trimmable)


@mutant(faults=("kill-detokenizer", "blink-worker", "kill-worker"), num_faults=12, max_records=60, step_s=0.04)
def snapshots_forget_the_workers_fences(patch: Patch) -> None:
    real = snapshot.restore

    def restore(fold: Fold, data: bytes) -> None:
        real(fold, data)
        fold.worker_fences.clear()

    patch.setattr(snapshot, "restore", restore)


@mutant(faults=("kill-detokenizer", "kill-scheduler"), num_faults=12, max_records=60)
def snapshots_forget_which_step_is_due(patch: Patch) -> None:
    real = snapshot.restore

    def restore(fold: Fold, data: bytes) -> None:
        real(fold, data)
        fold.next_steps.clear()

    patch.setattr(snapshot, "restore", restore)


@mutant(faults=("kill-scheduler",), max_records=60)
def the_newest_fence_is_trimmed_and_expected_for_ever(patch: Patch) -> None:
    """No Fence{keep} before trimming, and none of the care that a trimmed fence takes."""

    def store_fence(self: Any, data: bytes, expected: int) -> int | None:
        newest = self._newest_fence if self._newest_fence >= self.first_seq else 0
        if self._refuses or expected != newest:
            return None
        self._newest_fence = self._store("fence", data)
        return int(self._newest_fence)

    patch.setattr("tests.shard.sim_log.SimLog.store_fence", store_fence)
    patch.setattr(SimScheduler, "_keep_fence", lambda self, kept: kept(True))


# ---- readers (rules 14 and 15) ------------------------------------------------------------------------------------


@mutant(num_faults=0, loss=0.05)
def readers_do_not_notice_lost_batches(patch: Patch) -> None:
    patch.setattr(Attachments, "_attach_again", lambda self, streams, now: None)


@mutant(num_faults=0, loss=0.05)
def readers_take_text_twice(patch: Patch) -> None:
    def advance(self: Attachments, stream: Any, delta: Any, source: str, now: float) -> bool:
        stream.positions[delta.choice] = delta.stop
        stream.ended[delta.choice] = delta.end is not None
        return True

    patch.setattr(Attachments, "_advance", advance)


@mutant(faults=("kill-gateway",), step_s=0.15)
def a_dead_gateway_is_not_noticed(patch: Patch) -> None:
    patch.setattr(readership.Readership, "take_silent", lambda self, now: [])


@mutant(faults=("kill-gateway", "kill-scheduler"), num_faults=12, step_s=0.15)
def a_new_leader_forgets_who_reads(patch: Patch) -> None:
    real = Lifetimes.begin

    def begin(self: Lifetimes, state: Any, now: float) -> None:
        real(self, state, now)
        for gateway in (state.request.owner, *state.readers):
            self.readership.remove(state.request.request_id, gateway)

    patch.setattr(Lifetimes, "begin", begin)
