"""Plans in step order, epoch by epoch (protocol rules 1, 5 and 10)."""

from collections import deque
from typing import Literal

from services.worker.core.plan_columns import MalformedPlan, PlanColumns
from shared.messages.codec import WireError
from shared.messages.pipeline import EpochStart, StepPlan
from shared.messages.plan_parts import join_plans

MAX_PARTS = 1024

EpochVerdict = Literal["opened", "repeated", "stale_epoch"]
PlanVerdict = Literal["taken", "gap", "repeated", "stale_epoch", "unopened_epoch", "malformed"]


class PlanQueue:
    """Accepts EpochStart and StepPlan as they come from the bus; gives out whole plans, each step once and in order.

    epoch: the newest opened, 0 before the first. next_plan: step of the plan expected next. report_due: a CacheReport
    of this epoch is owed.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.next_plan = 1
        self.report_due = False
        self._parts: dict[int, StepPlan] = {}
        self._known_unique = b""
        self._ready: deque[PlanColumns] = deque()

    @property
    def num_queued(self) -> int:
        """Whole plans that wait for the engine."""
        return len(self._ready)

    def on_epoch_start(self, message: EpochStart) -> EpochVerdict:
        """ "opened": the epoch is new, queued plans are dropped, and all sequences must go.

        One that is repeated asks for the report again, unless a plan shows that the first report arrived.
        """
        if message.epoch < self.epoch:
            return "stale_epoch"
        if message.epoch == self.epoch:
            self.report_due = self.report_due or (self.next_plan == 1 and not self._parts)
            return "repeated"
        self.epoch = message.epoch
        self.next_plan = 1
        self.report_due = True
        self._parts.clear()
        self._ready.clear()
        return "opened"

    def on_plan(self, part: StepPlan) -> PlanVerdict:
        """Take one part of a plan; all verdicts but "taken" mean that it was dropped.

        "gap": it lies beyond the step expected next, so a PlanGap must be sent.
        """
        if part.epoch != self.epoch:
            return "stale_epoch" if part.epoch < self.epoch else "unopened_epoch"
        if part.step != self.next_plan:
            return "repeated" if part.step < self.next_plan else "gap"
        if not 0 <= part.part < part.num_parts <= MAX_PARTS:
            return "malformed"
        return self._add_part(part)

    def take(self) -> PlanColumns | None:
        """The next whole plan, None if there is none yet."""
        return self._ready.popleft() if self._ready else None

    def _add_part(self, part: StepPlan) -> PlanVerdict:
        if any(other.num_parts != part.num_parts for other in self._parts.values()):
            self._parts.clear()
        self._parts[part.part] = part
        if len(self._parts) < part.num_parts:
            return "taken"
        parts = [self._parts[index] for index in range(part.num_parts)]
        self._parts.clear()
        try:
            plan = PlanColumns(parts[0] if len(parts) == 1 else join_plans(parts), self._known_unique)
        except (MalformedPlan, WireError):
            return "malformed"
        self._known_unique = plan.plan.sequences
        self._ready.append(plan)
        self.next_plan += 1
        return "taken"
