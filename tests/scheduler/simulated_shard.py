"""A shard in one process: the real fold and scheduler, simulated workers, and every rule checked at every plan."""

import collections.abc
import random

from services.scheduler.core.capacity import Capacity
from services.scheduler.core.scheduler import Scheduler, SchedulerLimits, Verdict
from services.scheduler.core.sequence import Sequence
from shared.log.fold import Change, Fold
from shared.log.state import SequenceState
from shared.messages.codec import encode
from shared.messages.packed import INT32, UINT64, pack_tokens, unpack
from shared.messages.pipeline import End, EndReason, Fence, Request, StepPlan
from shared.messages.plan_parts import join_plans, split_plan
from tests.scheduler.simulated_worker import MODEL, VERSION, Contents, SimulatedWorker, sampling


class SimulatedShard:
    """What the scheduler's shell does, one call at a time. begun: requests of which a step was planned since it led."""

    def __init__(
        self, *, seed: int = 0, block_size: int = 4, watermark: float = 0.01, prefill_share: float = 0.5
    ) -> None:
        self.rng = random.Random(seed)
        self.block_size = block_size
        self.limits = SchedulerLimits(watermark=watermark, prefill_share=prefill_share)
        self.fold = Fold()
        self.scheduler = Scheduler(self.limits)
        self.contents = Contents(block_size)
        self.workers: dict[str, SimulatedWorker] = {}
        self.refused: dict[int, str] = {}
        self.verdicts: list[Verdict] = []
        self.outstanding: dict[str, dict[int, list[int]]] = {}
        self.begun: set[str] = set()
        self._num_requests = 0

    # ---- the log ----------------------------------------------------------------------------------------------------

    def append(self, kind: str, record: object) -> Change:
        """One record, folded at once."""
        return self.fold.apply(kind, encode(record), self.fold.seq + 1, self.fold.seq + 1)

    def submit(
        self,
        prompt: collections.abc.Sequence[int],
        max_tokens: int = 8,
        *,
        priority: int = 0,
        salt: str = "",
        **others: object,
    ) -> list[SequenceState]:
        """A request enters the log; its sequences."""
        self._num_requests += 1
        request = Request(
            request_id=f"{self._num_requests:032x}",
            model=MODEL,
            model_version=VERSION,
            prompt_token_ids=pack_tokens(prompt),
            sampling=sampling(max_tokens, **others),
            deadline_ns=2**62,
            priority=priority,
            cache_salt=salt,
        )
        states = self.append("req", request).sequences
        for state in states:
            reason = self.scheduler.add(state)
            if reason is not None:
                self.refused[state.id] = reason
                self.end(state, "rejected")
        return states

    def end(self, state: SequenceState, reason: EndReason = "cancel", position: int | None = None) -> None:
        """An End record for one sequence."""
        record = End(request_id=state.request.request_id, choice=state.choice, reason=reason, position=position)
        for ended in self.append("end", record).sequences:
            self.scheduler.end(ended.id)

    @property
    def live(self) -> list[SequenceState]:
        """Sequences without an end."""
        return [state for state in self.fold.sequences.values() if state.end is None]

    # ---- workers ----------------------------------------------------------------------------------------------------

    def join(self, name: str, *, num_blocks: int = 16, **limits: int | bool) -> SimulatedWorker:
        """A new worker incarnation."""
        worker = SimulatedWorker(
            name=name,
            num_blocks=num_blocks,
            block_size=self.block_size,
            contents=self.contents,
            rng=self.rng,
            **limits,  # type: ignore[arg-type]
        )
        self.workers[name] = worker
        self.open_epoch(name)
        return worker

    def open_epoch(self, name: str) -> None:
        """The worker reports its cache in the epoch that the fold says it has."""
        worker = self.workers[name]
        epoch = self.fold.epoch_of(name)
        self.outstanding[name] = {}
        self.scheduler.add_worker(worker.heartbeat(), epoch, worker.start_epoch(epoch))
        self._take_verdicts()

    def fence(self, name: str, *, died: bool = False, is_forgotten: bool = True) -> None:
        """The worker's epoch ends; if it died it is gone, and forgotten at once or later; else it reports."""
        self.append("fence", Fence(kind="worker", leader="", worker=name))
        self.outstanding[name] = {}
        self.scheduler.remove_worker(name, died=died)
        self._take_verdicts()
        if died:
            del self.workers[name]
            if is_forgotten:
                self.forget(name)
        else:
            self.open_epoch(name)

    def forget(self, name: str) -> None:
        """The worker, if it is gone, is not expected any more."""
        self.scheduler.forget_worker(name)
        self._take_verdicts()

    def take_over(self) -> None:
        """A new leader starts from the fold alone."""
        self.append("fence", Fence(kind="takeover", leader="next"))
        self.scheduler = Scheduler(self.limits)
        self.begun = set()
        for state in self.live:
            assert self.scheduler.add(state) is None
        for worker in self.workers.values():
            self.scheduler.expect_worker(worker.heartbeat())
        for name in self.workers:
            self.open_epoch(name)

    # ---- the data path ----------------------------------------------------------------------------------------------

    def schedule(self, name: str) -> StepPlan | None:
        """A plan goes to the worker, through parts if it is large."""
        plan = self.scheduler.schedule(name)
        if plan is None:
            return None
        self._check(name, plan)
        self.begun |= {self.fold.sequences[new.sequence].request.request_id for new in plan.new}
        self.outstanding[name][plan.step] = list(unpack(UINT64, plan.sequences))
        parts = split_plan(plan, self.rng.choice((400, 10**6)))
        self.rng.shuffle(parts)
        joined = join_plans(parts)
        assert joined == plan
        self.workers[name].plans.append(joined)
        return plan

    def _check(self, name: str, plan: StepPlan) -> None:
        numbers = list(unpack(UINT64, plan.sequences))
        assert len(self.outstanding[name]) < 2
        for number in numbers:
            state = self.fold.sequences[number]
            assert state.end is None, "rule 8: ended, but planned"
        for number, position in zip(numbers, unpack(INT32, plan.position), strict=True):
            assert position < self.fold.sequences[number].request.sampling.max_tokens
        everywhere = [other for steps in self.outstanding.values() for step in steps.values() for other in step]
        for new in plan.new:
            assert new.sequence not in everywhere, "rules 1 and 9: begins anew with rows in flight"
        elsewhere = [
            other for at, steps in self.outstanding.items() if at != name for step in steps.values() for other in step
        ]
        assert not set(numbers) & set(elsewhere), "rule 1: in flight at two workers"

    def execute(self, name: str) -> None:
        """The worker computes its next plan, if it has one."""
        if self.workers[name].plans:
            self.workers[name].execute()

    def fold_frame(self, name: str) -> None:
        """The worker's next frame enters the log, if there is one."""
        if not self.workers[name].frames:
            return
        frame = self.workers[name].frames.popleft()
        change = self.append("out", frame)
        assert change.counted
        del self.outstanding[name][frame.step]
        self.scheduler.update(name, frame.step)
        for state in change.sequences:
            if state.end is not None:
                self.scheduler.end(state.id)
        self._take_verdicts()

    def _take_verdicts(self) -> None:
        verdicts = self.scheduler.take_verdicts()
        self.verdicts.extend(verdicts)
        for verdict in verdicts:
            if verdict.reason == "rejected":
                capacities = [Capacity.of(worker.heartbeat()) for worker in self.workers.values()]
                able = [each for each in capacities if each.can_go_on(Sequence(verdict.sequence))]
                assert not able, "rule 13: given up, though a worker that lives could run it"
            self.end(verdict.sequence, verdict.reason)

    def turn(self) -> None:
        """Every worker gets plans, computes one and has one folded."""
        for name in list(self.workers):
            while self.schedule(name) is not None:
                pass
            self.execute(name)
            self.fold_frame(name)

    def run(self, patience: int = 200) -> None:
        """Until every sequence has its end; some token must be folded every so many turns."""
        num_idle_turns = 0
        while self.live:
            before = self._progress()
            self.turn()
            num_idle_turns = 0 if self._progress() > before else num_idle_turns + 1
            assert num_idle_turns < patience, f"{len(self.live)} sequences stand still"

    def _progress(self) -> int:
        tokens = sum(len(state.tokens) for state in self.fold.sequences.values())
        return tokens + len(self.fold.sequences) - len(self.live)

    def check(self) -> None:
        """What must hold at any time."""
        assert self.scheduler.check_integrity() == []
        assert self.fold.counts["prefix_mismatched"] == 0
        assert self.fold.counts["row_foreign"] == 0
