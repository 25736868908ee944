"""The scheduler: which worker computes which tokens in which step. Pure: it sees no clock, no socket and no log.

Its shell feeds it what the log says and sends what it decides:

    log ── Request ──> add()          ┐                            ┌──> schedule() ──> StepPlan to the worker
        ── Rows ────── (fold) update()│──> sequences and workers ──┤
        ── End ──────> end()          │                            └──> take_verdicts() ──> End into the log
        ── Fence ────> remove_worker()┘
    heartbeat, CacheReport ──> expect_worker(), add_worker(), set_accepting()
    silence ──> forget_worker()

After each of these, every worker with fewer than max_num_outstanding plans may have something to do: call schedule()
until it returns None. Plans are made ahead of the results: a row in flight counts as a token whose id only the worker
knows, so a plan never waits for a token. What happens to plans ahead when a result changes the picture:

    the sequence ended      its rows in flight are skipped by the worker, or folded as overrun (rules 6 and 8)
    it was preempted        it settles: its blocks are given away at once, since plans are executed in order, but it
                            waits until its rows in flight are folded, which it then need not compute again (rule 9)
    its worker was fenced   nothing in flight counts any more: it waits again at its folded position (rule 1)
"""

from collections.abc import Iterable

import msgspec

from services.scheduler.core.backlog import Backlog
from services.scheduler.core.capacity import Capacity
from services.scheduler.core.placement import Placement
from services.scheduler.core.planner import plan_step
from services.scheduler.core.sequence import Sequence, Status
from services.scheduler.core.waiting import WaitingQueue
from services.scheduler.core.worker_state import WorkerState
from shared.log.state import SequenceState
from shared.messages.control import WorkerHeartbeat
from shared.messages.pipeline import EndReason, StepPlan

MAX_SOLO_DEATHS = 2
FOUND_BY_WORKER: frozenset[EndReason] = frozenset({"eos", "stop_token", "length", "error"})

Model = tuple[str, str]
Fate = tuple[EndReason, str]


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """max_num_outstanding: plans sent to a worker and not folded (2 keeps it busy without a wait for the log).
    watermark: share of a worker's blocks that a newly bound sequence must leave free. prefill_share: share of a step's
    tokens that prompts may take beside streams."""

    max_num_outstanding: int = 2
    watermark: float = 0.01
    prefill_share: float = 0.5


class Verdict(msgspec.Struct, frozen=True):
    """The scheduler ends a sequence: its shell appends an End with this reason at the folded position.

    reason: quarantined (its worker died twice while it ran alone), length (max_model_len reached before max_tokens),
    rejected (fits no worker; found when one opened, or when the last that could run it was forgotten).
    """

    sequence: SequenceState
    reason: EndReason
    message: str


class Scheduler:
    """All sequences and workers of a shard. Sequences are known by id, workers by incarnation name."""

    def __init__(self, limits: SchedulerLimits | None = None) -> None:
        self.limits = limits or SchedulerLimits()
        self.workers: dict[str, WorkerState] = {}
        self._capacities: dict[str, Capacity] = {}
        self._sequences: dict[int, Sequence] = {}
        self._waiting: dict[Model, WaitingQueue] = {}
        self.backlog = Backlog()
        self._placement = Placement(self.limits.watermark, self.backlog)
        self._verdicts: list[Verdict] = []
        self.num_preemptions = 0
        self.num_swapped_blocks = 0
        self.num_moves = 0
        self.num_overrun_rows = 0

    # ---- workers ----------------------------------------------------------------------------------------------------

    def expect_worker(self, heartbeat: WorkerHeartbeat) -> None:
        """A worker lives and will be added: what it can run waits for it, whoever else is there."""
        self._capacities[heartbeat.worker] = Capacity.of(heartbeat)

    def add_worker(self, heartbeat: WorkerHeartbeat, epoch: int, cached: Iterable[tuple[int, bytes]] = ()) -> None:
        """A worker is idle in a new epoch, its steps start at 1. If it was known, its old epoch is over.

        cached: (block id, hash) of contents it still holds: its sequences find them as prefix-cache hits (rule 10).
        """
        self.remove_worker(heartbeat.worker)
        self.expect_worker(heartbeat)
        worker = WorkerState(heartbeat, epoch, cached, self.limits.max_num_outstanding, self.limits.prefill_share)
        self.workers[worker.name] = worker
        self._judge_waiting(worker.model)

    def remove_worker(self, name: str, *, died: bool = False) -> None:
        """A fence of the worker was folded: its rows in flight do not count, its sequences wait where they are folded.

        It is expected back: what only it can run waits, until forget_worker(). died: it is not known to live. The
        sequences of its unfolded plans become suspects; the one that ran alone is quarantined at its second death
        (rule 20). An unknown name changes nothing.
        """
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        in_flight = [sequence for step in worker.outstanding for sequence in step.sequences]
        soloist = worker.outstanding[0].sequences[0] if worker.outstanding and worker.outstanding[0].solo else None
        for sequence in [*worker.running, *worker.settling.values()]:
            self._wait(sequence)
        if not died:
            return
        for sequence in in_flight:
            sequence.suspect = True
        if soloist is not None and soloist.status is not Status.ENDED:
            soloist.num_solo_deaths += 1
            if soloist.num_solo_deaths >= MAX_SOLO_DEATHS:
                self._judge(soloist, "quarantined", f"{MAX_SOLO_DEATHS} workers died while computing this request")

    def forget_worker(self, name: str) -> None:
        """A worker that was removed, or never added, is not expected any more: what only it could run has its end. An
        unknown name changes nothing."""
        capacity = self._capacities.pop(name, None)
        if capacity is not None:
            self._judge_waiting(capacity.model)

    def set_accepting(self, name: str, accepting: bool) -> None:
        """False: the worker drains. Its sequences move as soon as others accept, else they finish there."""
        if name in self.workers:
            self.workers[name].accepting = accepting

    def learn_costs(self, heartbeat: WorkerHeartbeat) -> None:
        """What the worker has measured since it was added."""
        if heartbeat.worker in self.workers:
            self.workers[heartbeat.worker].swap.learn_costs(heartbeat)

    # ---- sequences --------------------------------------------------------------------------------------------------

    def add(self, state: SequenceState) -> str | None:
        """A live sequence, new or found by a take-over, waits. Returns why it can never run, None if it can.

        What is refused is not kept. While no worker of its model is open, everything waits.
        """
        if state.id in self._sequences or state.end is not None:
            return None
        sequence = Sequence(state)
        fate = self._fate(sequence)
        if fate is not None and fate[0] == "rejected":
            return fate[1]
        self._sequences[state.id] = sequence
        self.backlog.join(state.request)
        self._wait(sequence)
        return None

    def end(self, sequence_id: int) -> None:
        """The end of the sequence is folded: no plan from now on holds it, its blocks are free (rule 8).

        update() finds the ends that a worker's own frame brings; this is for all others, and harmless for those.
        """
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        if sequence.state.reason not in FOUND_BY_WORKER:
            self.num_overrun_rows += sequence.num_steps_in_flight
        self._drop(sequence)
        self.backlog.leave(sequence.state.request)
        sequence.status = Status.ENDED

    def take_verdicts(self) -> list[Verdict]:
        """Sequences that the scheduler has ended since the last call. They are in no plan any more."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    # ---- the two phases ---------------------------------------------------------------------------------------------

    def schedule(self, name: str) -> StepPlan | None:
        """The next plan for this worker; None if it has enough of them, there is nothing to do, or it is unknown."""
        worker = self.workers.get(name)
        if worker is None or not worker.may_be_planned:
            return None
        waiting = self._queue(worker.model)
        if not worker.accepting and worker.running:
            self._move_away(worker)
        if waiting:
            self._placement.bind_waiting(waiting, self._workers_of(worker.model))
        if worker.suspect is not None:
            return self._schedule_with_suspect(worker, worker.suspect)
        return plan_step(worker, self._preempt)

    def update(self, name: str, step: int) -> None:
        """The frame of this worker's step was folded, in its present epoch: absorb what it changed.

        The SequenceStates hold the new tokens and ends already. Cost: O(sequences of the step).
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        while worker.outstanding and worker.outstanding[0].step <= step:
            planned = worker.outstanding.popleft()
            for sequence, position, stop in zip(planned.sequences, planned.positions, planned.stops, strict=True):
                sequence.num_steps_in_flight -= 1
                if sequence.status is Status.RUNNING:
                    self._absorb(worker, sequence, position, stop)
                elif sequence.status is Status.SETTLING:
                    self._settle(worker, sequence)

    def _absorb(self, worker: WorkerState, sequence: Sequence, position: int, stop: int) -> None:
        """A folded step of a running sequence: name its full blocks, find its end, or what went wrong."""
        state = sequence.state
        if stop >= sequence.next_name_at and state.reason != "error":
            worker.name_blocks(sequence, stop)
        if state.reason == "error":
            # perhaps for what lies in them: the next one computes it anew
            worker.blocks.forget(sequence.block_table)
            worker.swap.forget(sequence.block_hashes)
        if state.end is not None:
            self.end(state.id)
        elif position < 0:
            return
        elif len(state.tokens) <= position:
            # the worker did not deliver the row: compute it again, from what is folded
            self._preempt(sequence)
        else:
            if sequence.suspect:
                worker.clear(sequence)
            if sequence.num_tokens >= sequence.max_num_tokens and not sequence.num_steps_in_flight:
                self._judge(sequence, "length", "")

    def _settle(self, worker: WorkerState, sequence: Sequence) -> None:
        if sequence.state.end is not None:
            self.end(sequence.id)
        elif not sequence.num_steps_in_flight:
            del worker.settling[sequence.id]
            self._wait(sequence)

    def _schedule_with_suspect(self, worker: WorkerState, suspect: Sequence) -> StepPlan | None:
        """Solo steps of the suspect in turn with steps of all others. While a solo step is outstanding nothing else
        is, so that a death has one cause; the others' streams go on at half speed meanwhile (rule 20)."""
        if worker.outstanding and (worker.solo_turn or worker.outstanding[-1].solo):
            return None
        if not worker.solo_turn:
            plan = plan_step(worker, self._preempt)
            if plan is not None or worker.outstanding or worker.suspect is None:
                worker.solo_turn = True
                return plan
        worker.solo_turn = False
        return plan_step(worker, self._preempt, only=suspect)

    # ---- leaving a worker -------------------------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence) -> None:
        """Give the sequence's blocks to others; it is computed again later, from the prefix cache if it is lucky."""
        self.num_preemptions += 1
        worker = self.workers[sequence.last_worker]
        self.num_swapped_blocks += worker.keep_in_swap_space(sequence)
        self._unbind(sequence)

    def _move_away(self, worker: WorkerState) -> None:
        """Take as many sequences off a draining worker as others have seats for."""
        others = [other for other in self._workers_of(worker.model) if other.accepting]
        num_seats = sum(other.num_free_seats for other in others) - len(self._queue(worker.model))
        num_seats -= sum(len(other.settling) for other in self.workers.values())
        for sequence in worker.running.snapshot()[: max(0, num_seats)]:
            needs_nothing = sequence.num_tokens >= sequence.max_num_tokens  # its last rows are in flight
            if needs_nothing or any(other.capacity.can_go_on(sequence) for other in others):
                self.num_moves += 1
                self._unbind(sequence)

    def _unbind(self, sequence: Sequence) -> None:
        worker = self.workers[sequence.last_worker]
        worker.release(sequence)
        if sequence.num_steps_in_flight:
            sequence.status = Status.SETTLING
            worker.settling[sequence.id] = sequence
        else:
            self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.wait()
        self._queue(sequence.model).add(sequence)
        if fate := self._fate(sequence):
            self._judge(sequence, *fate)

    def _drop(self, sequence: Sequence) -> None:
        """Out of the queue or off the worker that it stands in."""
        if sequence.status is Status.WAITING:
            self._queue(sequence.model).remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.workers[sequence.last_worker].release(sequence)
        elif sequence.status is Status.SETTLING:
            del self.workers[sequence.last_worker].settling[sequence.id]

    # ---- what fits --------------------------------------------------------------------------------------------------

    def _judge_waiting(self, model: Model) -> None:
        """End what no worker can run any more, or yet. To be called whenever that may have changed for any of them."""
        for sequence in self._queue(model).snapshot():
            if fate := self._fate(sequence):
                self._judge(sequence, *fate)

    def _fate(self, sequence: Sequence) -> Fate | None:
        """How a waiting sequence must end which no known worker can run, one that is expected among them; None if one
        can, or none is open. Where it would fit, it has as many folded tokens as it can, and no End says so yet."""
        if not self._workers_of(sequence.model):
            return None
        capacities = [capacity for capacity in self._capacities.values() if capacity.model == sequence.model]
        if any(capacity.can_go_on(sequence) for capacity in capacities):
            return None
        refusals = [capacity.refusal(sequence) for capacity in capacities]
        refusal = refusals[0]
        return ("length", "") if refusal is None or None in refusals else ("rejected", refusal)

    def _judge(self, sequence: Sequence, reason: EndReason, message: str) -> None:
        self._verdicts.append(Verdict(sequence.state, reason, message))
        self.end(sequence.id)

    def _workers_of(self, model: Model) -> list[WorkerState]:
        return [worker for worker in self.workers.values() if worker.model == model]

    def _queue(self, model: Model) -> WaitingQueue:
        queue = self._waiting.get(model)
        if queue is None:
            queue = self._waiting[model] = WaitingQueue()
        return queue

    # ---- figures ----------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Sequences bound to a worker."""
        return sum(len(worker.running) for worker in self.workers.values())

    @property
    def num_waiting(self) -> int:
        """Sequences bound to none, settling ones among them."""
        return len(self._sequences) - self.num_running

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of all sequences in the queues. O(models)."""
        return sum(queue.num_tokens for queue in self._waiting.values())

    @property
    def kv_cache_usage(self) -> float:
        """Share of all workers' blocks that sequences hold, from 0 to 1."""
        num_blocks = sum(worker.blocks.num_blocks for worker in self.workers.values())
        num_held = sum(worker.blocks.num_held_blocks for worker in self.workers.values())
        return num_held / num_blocks if num_blocks else 0.0

    @property
    def prefix_cache_queries(self) -> int:
        """Tokens of sequences bound to workers with a prefix cache."""
        return self._placement.num_queried_tokens

    @property
    def prefix_cache_hits(self) -> int:
        """How many of these tokens need not be computed."""
        return self._placement.num_hit_tokens

    def check_integrity(self) -> list[str]:
        """Everything that is wrong with the state; empty when all is well. For idle times, tests and chaos runs."""
        problems = [problem for worker in self.workers.values() for problem in worker.check_integrity()]
        problems += self.backlog.check_integrity()
        for queue in self._waiting.values():
            problems += queue.check_integrity()
        places = [sequence for queue in self._waiting.values() for sequence in queue]
        hopeless = [sequence for sequence in places if self._fate(sequence)]
        problems += [f"sequence {sequence.id} waits although no worker can run it" for sequence in hopeless]
        problems += [f"sequence {s.id} waits as {s.status.name}" for s in places if s.status is not Status.WAITING]
        problems += [f"sequence {s.id} waits with blocks" for s in places if s.block_table or s.num_steps_in_flight]
        for worker in self.workers.values():
            places += [*worker.running, *worker.settling.values()]
        if sorted(sequence.id for sequence in places) != sorted(self._sequences):
            problems.append(f"{len(self._sequences)} sequences are known, {len(places)} are somewhere")
        return problems
