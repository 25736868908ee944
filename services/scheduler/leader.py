"""A term of leadership: from a folded take-over until the process ends.

Everything here is rebuilt from the fold at the start of the term. Handlers run on the event loop in fold order; now is
the loop's monotonic clock in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from structlog.typing import FilteringBoundLogger

from services.scheduler.core.lifetimes import Lifetimes
from services.scheduler.core.scheduler import Scheduler, Verdict
from services.scheduler.core.worker_link import LinkState, WorkerLink
from shared import subjects
from shared.block_hash import HASH_BYTES
from shared.log.fold import Change, Fold
from shared.log.state import RequestState
from shared.messages.codec import encode
from shared.messages.control import CacheReport, GatewayHeartbeat, PlanGap, ShardLoad, WorkerHeartbeat
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Done, End, EndReason, EpochStart, Fence, Reader, Request, Rows
from shared.messages.plan_parts import split_plan
from shared.queue_limits import QUEUE_FULL, QueueLimits

BLOCK_ID_BYTES = 4
SUCCESSOR_S = 30.0  # whoever supervises a worker starts it again, and it loads its weights


@dataclass(slots=True)
class LeaderPorts:
    """How the leader acts on the world; none of these waits.

    send: publish bytes on a subject. send_plan: the same for plans (test switches drop a share of them).
    append: store End, Done and Reader records in the background, in this order, each with its message id.
    append_while: store one, unless the log has not taken it when what it says holds no more.
    fence: append a worker's Fence, and call back with whether the fold shows it.
    ask_for_gateway: ask the bus whether it knows a gateway, and call back if it does not.
    """

    send: Callable[[str, bytes], object]
    send_plan: Callable[[str, bytes], object]
    append: Callable[[list[tuple[End | Done | Reader, str]]], None]
    append_while: Callable[[End | Done | Reader, str, Callable[[], bool]], None]
    fence: Callable[[str, Callable[[bool], None]], None]
    ask_for_gateway: Callable[[str, Callable[[], None]], None]
    max_plan_bytes: Callable[[], int]


class Leader:
    """The leading scheduler of a shard."""

    def __init__(
        self,
        fold: Fold,
        core: Scheduler,
        ports: LeaderPorts,
        logger: FilteringBoundLogger,
        queue_limits: QueueLimits | None = None,
    ) -> None:
        self._fold = fold
        self.core = core
        self._ports = ports
        self._logger = logger
        self._queue_limits = queue_limits or QueueLimits()
        self.links: dict[str, WorkerLink] = {}
        self._missed: dict[str, float] = {}
        self._lifetimes = Lifetimes()
        self.num_fences = 0
        self.num_turned_away = 0
        self.num_folded_frames = 0

    def start(self, heartbeats: list[WorkerHeartbeat], now: float) -> None:
        """Take over all live sequences of the fold, and open an epoch with every worker heard of lately."""
        for state in self._fold.requests.values():
            if not state.ended:
                self._admit(state, now)
        for heartbeat in heartbeats:
            self.on_worker_heartbeat(heartbeat, now)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def on_worker_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        """A worker lives; a new one is opened."""
        link = self.links.get(heartbeat.worker)
        if link is None:
            if heartbeat.leaving:
                return
            link = WorkerLink(heartbeat, self._fold.epoch_of(heartbeat.worker), now)
            self.links[heartbeat.worker] = link
            self._missed.pop(link.name, None)
            self.core.expect_worker(heartbeat)
            self._logger.info("worker joined", worker=heartbeat.worker, epoch=link.epoch)
        link.on_heartbeat(heartbeat, now)
        if link.state is LinkState.OPEN:
            self.core.set_accepting(link.name, not heartbeat.leaving)
            self.core.learn_costs(heartbeat)
        self._announce(link, now)
        lagging = link.lagging_step(now)
        if lagging is not None:
            self._resend(link, lagging, now)

    def on_cache_report(self, report: CacheReport, now: float) -> None:
        """The worker is idle in its new epoch: what it holds becomes cache, and plans may flow (rule 10)."""
        link = self.links.get(report.worker)
        if link is None or link.state is not LinkState.OPENING or report.epoch != link.epoch:
            return
        cached = _contents(report)
        if cached is None:
            self._logger.warning("malformed cache report", worker=link.name)
            return
        link.open(now)
        self.core.add_worker(link.heartbeat, link.epoch, cached)
        self.core.set_accepting(link.name, not link.heartbeat.leaving)
        self.pump(now)

    def on_plan_gap(self, gap: PlanGap, now: float) -> None:
        """A plan was lost on the way."""
        link = self.links.get(gap.worker)
        if link is not None and gap.epoch == link.epoch:
            self._resend(link, gap.next_plan, now)

    def _announce(self, link: WorkerLink, now: float) -> None:
        if link.announcement_due(now):
            self._ports.send(subjects.plan(link.name), encode(EpochStart(epoch=link.epoch)))

    def _resend(self, link: WorkerLink, step: int, now: float) -> None:
        for message in link.resend_from(step, now):
            self._ports.send_plan(subjects.plan(link.name), message)

    def tick(self, now: float, now_ns: int) -> None:
        """Every 50 ms: fences, announcements, requests that are over. Only while the leader's own tail is live."""
        for link in list(self.links.values()):
            self._announce(link, now)
            self._check_progress(link, now)
        for name in [name for name, since in self._missed.items() if now - since > SUCCESSOR_S]:
            del self._missed[name]
            self.core.forget_worker(name)
        readership = self._lifetimes.readership
        for gateway in readership.take_questions(now):
            self._ports.ask_for_gateway(gateway, partial(readership.on_absent, gateway))
        self._end_what_is_over(now, now_ns)
        self.pump(now)

    def _end_what_is_over(self, now: float, now_ns: int) -> None:
        dues = self._lifetimes.due(now_ns)
        for gateway, lost in self._lifetimes.due_to_silence(now, now_ns):
            self._logger.warning("a gateway is gone, and what it read ends", gateway=gateway, requests=len(lost))
            dues += lost
        for due in dues:
            self._ports.append_while(due.record, due.message_id, due.holds)

    def _check_progress(self, link: WorkerLink, now: float) -> None:
        reason = link.fence_reason(now)
        if reason is None:
            return
        if link.state is LinkState.OPENING:
            if link.is_silent(now):
                self._logger.info("worker gone before it opened", worker=link.name)
                self._miss(link.name, now)
            return
        self._logger.warning("fencing worker", worker=link.name, reason=reason, epoch=link.epoch)
        self.num_fences += 1
        link.on_fencing(reason, now)
        self.core.set_accepting(link.name, False)

        def answered(folded: bool) -> None:
            if not folded:
                link.on_fence_failed()

        self._ports.fence(link.name, answered)

    def _on_worker_fenced(self, worker: str, now: float) -> None:
        link = self.links.get(worker)
        if link is None:
            return
        died = link.is_broken(now) and not link.heartbeat.leaving
        self.core.remove_worker(worker, died=died)
        if link.is_silent(now):
            self._miss(worker, now)
        else:
            link.start_epoch(self._fold.epoch_of(worker), now)
            self._announce(link, now)

    def _miss(self, worker: str, now: float) -> None:
        """Nothing is heard of a worker. What no other one can run waits a while for its return, or a successor's."""
        del self.links[worker]
        self._missed[worker] = now

    def reset_clocks(self, now: float, *, was_deaf: bool) -> None:
        """This process was paused, or deaf as when the bus is away: that says nothing about workers and gateways."""
        for link in self.links.values():
            link.reset_clocks(now)
        self._lifetimes.readership.reset(now, was_deaf=was_deaf)

    # ---- gateways ---------------------------------------------------------------------------------------------------

    def on_gateway_heartbeat(self, heartbeat: GatewayHeartbeat, now: float) -> None:
        """A gateway lives, so what its clients read is read."""
        self._lifetimes.readership.on_heartbeat(heartbeat.gateway, now)

    # ---- the log ----------------------------------------------------------------------------------------------------

    def on_change(self, change: Change, now: float) -> None:
        """A record was folded."""
        record = change.record
        if isinstance(record, Rows):
            self._on_frame(record, change.counted, now)
        elif isinstance(record, Fence) and record.kind == "worker":
            self._on_worker_fenced(record.worker, now)
        elif isinstance(record, Request):
            if change.counted:
                self._on_request(self._fold.requests[record.request_id], now)
        elif isinstance(record, Reader):
            self._lifetimes.on_reader(record, now)
        elif isinstance(record, End) and change.counted:
            self._lifetimes.on_end_record(record)
            if record.reason == "rejected":
                self._on_rejected(self._fold.requests[record.request_id])
        for sequence in change.sequences:
            if sequence.end is not None:
                self.core.end(sequence.id)
                self._lifetimes.on_end(sequence.request.request_id)
        self.pump(now)

    def _on_frame(self, frame: Rows, counted: bool, now: float) -> None:
        link = self.links.get(frame.worker)
        if link is None or not counted or frame.epoch != link.epoch or link.state is LinkState.OPENING:
            return
        self.core.update(frame.worker, frame.step)
        link.on_folded(frame.step, now)
        self.num_folded_frames += 1

    def _on_request(self, state: RequestState, now: float) -> None:
        """A new request joins the queue, unless that is full; what an earlier leader let in is never turned away."""
        if state.ended:
            return
        backlog = self.core.backlog
        refusal = self._queue_limits.refusal(backlog.num_requests, backlog.num_tokens, state.num_prompt_tokens)
        if refusal is not None:
            self.num_turned_away += 1
            self._reject(state, refusal, QUEUE_FULL)
            return
        self._admit(state, now)

    def _admit(self, state: RequestState, now: float) -> None:
        """The choices of a live request; some may have ended under an earlier leader."""
        request = state.request
        self._lifetimes.begin(state, now)
        for sequence in state.sequences:
            if sequence.end is not None:
                continue
            self._logger.debug(
                "admitted", sequence=sequence.id, request_id=request.request_id, traceparent=request.traceparent
            )
            refusal = self.core.add(sequence)
            if refusal is not None:
                self._reject(state, refusal)
                return

    def _reject(self, state: RequestState, refusal: str, code: str | None = None) -> None:
        """End a request that no worker can run, or that the queue has no room for. One that had begun on a worker
        which is gone fails where it stands: its readers may have all that is folded."""
        request_id = state.request.request_id
        for sequence in state.sequences:
            self.core.end(sequence.id)
        begun = any(sequence.tokens or sequence.end is not None for sequence in state.sequences)
        reason: EndReason = "error" if begun else "rejected"
        end = End(request_id=request_id, reason=reason, message=refusal, code=code)
        self._ports.append([(end, f"rejected-{request_id}")])

    def _on_rejected(self, state: RequestState) -> None:
        """A rejection is folded: its outcome is the scheduler's to write (rule 7). Not before, and not where tokens
        came first: the record may be that of a leader who did not know yet that the next one had let the request in."""
        if state.done is not None or any((each.end, each.reason) != (0, "rejected") for each in state.sequences):
            return
        request_id = state.request.request_id
        reasons = tuple(sequence.reason for sequence in state.sequences if sequence.reason is not None)
        done = Done(request_id=request_id, positions=(0,) * len(reasons), reasons=reasons)
        self._ports.append([(done, f"done-{request_id}")])

    def _carry_out(self, verdict: Verdict) -> None:
        """The core has ended a sequence; the log makes it so."""
        sequence = verdict.sequence
        if verdict.reason == "rejected":
            self._reject(self._fold.requests[sequence.request.request_id], verdict.message)
            return
        end = End(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            reason=verdict.reason,
            message=verdict.message,
        )
        self._ports.append([(end, f"{verdict.reason}-{sequence.id}")])

    # ---- plans ------------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Send every plan that there is room for, round by round: a plan for one worker can free a sequence for
        another whose turn has passed."""
        while sum(self._plan_for(link, now) for link in self.links.values()):
            pass
        for verdict in self.core.take_verdicts():
            self._carry_out(verdict)

    def _plan_for(self, link: WorkerLink, now: float) -> bool:
        """Whether this worker got a plan."""
        if not link.has_room:
            return False
        plan = self.core.schedule(link.name)
        if plan is None:
            return False
        parts = [encode(part) for part in split_plan(plan, self._ports.max_plan_bytes())]
        for part in parts:
            self._ports.send_plan(subjects.plan(link.name), part)
        link.on_sent(parts, now)
        return True

    @property
    def num_abandoned(self) -> int:
        """Requests that this leader has ended because nobody read them."""
        return self._lifetimes.num_abandoned

    @property
    def can_plan(self) -> bool:
        """Whether any sequence is left to plan, and any worker to plan it for."""
        return bool(self.links) and bool(self.core.num_running or self.core.num_waiting)

    def load(self, log_full: bool) -> ShardLoad:
        """What tokenizers and gateways are told."""
        return ShardLoad(
            num_workers=sum(
                link.state is LinkState.OPEN and not link.heartbeat.leaving for link in self.links.values()
            ),
            num_running=self.core.num_running,
            num_waiting=self.core.num_waiting,
            num_waiting_tokens=self.core.num_waiting_tokens,
            kv_cache_usage=self.core.kv_cache_usage,
            log_full=log_full,
            max_model_len=max((link.heartbeat.max_model_len for link in self.links.values()), default=0),
            num_folded_frames=self.num_folded_frames,
            num_queued_reqs=self.core.backlog.num_requests,
            num_queued_tokens=self.core.backlog.num_tokens,
        )


def _contents(report: CacheReport) -> list[tuple[int, bytes]] | None:
    """(block id, hash) of each reported block; None if the columns do not fit each other."""
    hashes = report.block_hashes
    if len(report.block_ids) * HASH_BYTES != len(hashes) * BLOCK_ID_BYTES or len(hashes) % HASH_BYTES:
        return None
    return [
        (block_id, hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])
        for index, block_id in enumerate(unpack_tokens(report.block_ids))
    ]
