"""One HTTP request from its checked form to the last byte of its answer."""

import asyncio
import functools
import time

from services.gateway.core.answers import Gathering, Identity, Usage
from services.gateway.core.events import EventFormat, error_event
from services.gateway.core.preparation import Prepared
from services.gateway.http.exchange import Exchange
from services.gateway.metrics import ModelMetrics
from services.gateway.pipeline import Pipeline
from shared.errors import RequestError, timed_out
from shared.messages.pipeline import Accepted, Delta, GenerateRequest
from shared.reading.outcome import FINISH_REASONS, failure
from shared.reading.stream import Stream
from shared.reading.submission import submit

DEADLINE_GRACE_S = 5.0


class Generation:
    """Sends the requests of all prompts, reads their text, answers.

    Deltas come in from the bus's read loop (_on_delta) and leave in the same call: a token costs no task switch. No
    HTTP status is sent before the first delta or end (rule 13). Whatever way it ends, requests that still run are
    cancelled in the log.
    """

    def __init__(self, pipeline: Pipeline, prepared: Prepared, exchange: Exchange, metrics: ModelMetrics) -> None:
        self._pipeline = pipeline
        self._prepared = prepared
        self._exchange = exchange
        self._metrics = metrics
        self._usage = Usage()
        self._identity = Identity.of(prepared, int(time.time()))
        self._format = EventFormat(prepared, self._identity, self._usage) if prepared.params.stream else None
        self._gathering = None if prepared.params.stream else Gathering(prepared, self._identity)
        self._streams: list[Stream] = []
        self._running: dict[str, str] = {}
        self._num_open = prepared.num_choices
        self._error: RequestError | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._held: list[bytes] | None = []
        self._started_at = time.monotonic()
        self._first_at = 0.0
        self._last_at = [0.0] * prepared.num_choices

    async def run(self) -> None:
        """Answer the request. Raises RequestError as long as no status was sent."""
        try:
            deadline_s = self._prepared.requests[0].deadline_s
            async with asyncio.timeout(deadline_s + DEADLINE_GRACE_S):
                await self._answer()
        except TimeoutError:
            await self._answer_failure(timed_out("The deadline of the request has passed."))
        finally:
            self._abandon()

    def fail(self, error: RequestError) -> None:
        """End the answer with an error; what runs is cancelled."""
        self._error = self._error or error
        self._begun.set()
        self._over.set()

    async def _answer(self) -> None:
        accepted = await self._submit()
        prompt_token_ids = [each.prompt_token_ids for each in accepted]
        self._usage.num_prompt_tokens = sum(each.num_prompt_tokens for each in accepted)
        self._metrics.num_prompt_tokens += self._usage.num_prompt_tokens
        if self._format is not None:
            self._format.prompt_token_ids = prompt_token_ids
        await self._attach(accepted)
        await self._begun.wait()
        if self._error is not None:
            raise self._error
        if self._format is not None:
            await self._start_events(self._format)
        await self._over.wait()
        if self._error is not None:
            await self._answer_failure(self._error)
            return
        self._count_success()
        if self._format is not None:
            await self._exchange.end_events(self._format.last_events())
        elif self._gathering is not None:
            await self._exchange.answer(200, self._gathering.body(self._usage, prompt_token_ids))

    async def _answer_failure(self, error: RequestError) -> None:
        """Before the status the error is the answer, after it the last event: never a silent end."""
        if not self._exchange.status:
            raise error
        await self._exchange.end_events(error_event(error))

    # ---- sending and reading

    async def _submit(self) -> list[Accepted]:
        requests = self._prepared.requests
        if len(requests) == 1:
            return [await self._submit_one(requests[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._submit_one(request)) for request in requests]
        except* RequestError as errors:
            refusals = [error for error in errors.exceptions if isinstance(error, RequestError)]
        else:
            return [task.result() for task in tasks]
        raise refusals[0]

    async def _submit_one(self, request: GenerateRequest) -> Accepted:
        request_id = request.request_id or ""
        self._running[request_id] = self._pipeline.shard
        try:
            accepted = await submit(self._pipeline.bus, request)
        except RequestError as error:
            if error.status < 500:
                del self._running[request_id]
            raise
        self._running[request_id] = accepted.shard
        return accepted

    async def _attach(self, accepted: list[Accepted]) -> None:
        num_choices = self._prepared.params.n
        for index, each in enumerate(accepted):
            await self._pipeline.hub.follow(each.shard)
            on_delta = functools.partial(self._on_delta, index * num_choices)
            stream = Stream(each.request_id, each.shard, num_choices, on_delta)
            self._streams.append(stream)
            self._pipeline.hub.attach(stream)

    async def _start_events(self, events: EventFormat) -> None:
        await self._exchange.start_events()
        held, self._held = self._held or [], None
        self._exchange.write_event(events.first_events() + b"".join(held))
        self._exchange.connection.on_pause = self._pause
        self._exchange.connection.on_resume = self._resume

    def _pause(self) -> None:
        """The client reads too slowly: its text stays with the detokenizers (rule 15)."""
        for stream in self._streams:
            self._pipeline.hub.detach(stream)

    def _resume(self) -> None:
        for stream in self._streams:
            self._pipeline.hub.attach(stream)

    def _abandon(self) -> None:
        """Read no more, and cancel what still runs."""
        for stream in self._streams:
            if stream.is_done:
                self._running.pop(stream.request_id, None)
            else:
                self._pipeline.hub.detach(stream)
        for request_id, shard in self._running.items():
            self._pipeline.cancel(request_id, shard)
        self._running.clear()

    # ---- per delta

    def _on_delta(self, first_choice: int, delta: Delta, now: float) -> None:
        """Called from the bus's read loop for every delta of every stream: the hot path of a gateway."""
        if self._error is not None:
            return
        if delta.end is not None or delta.error is not None:
            error = failure(delta)
            if error is not None:
                self.fail(error)
                return
        choice = first_choice + delta.choice
        self._count(choice, delta, now)
        if self._format is not None:
            event = self._format.event(choice, delta)
            if self._held is None:
                self._exchange.write_event(event)
            else:
                self._held.append(event)
                self._begun.set()
        elif self._gathering is not None:
            self._gathering.on_delta(choice, delta)
        if delta.end is not None:
            self._on_end(delta)

    def _on_end(self, delta: Delta) -> None:
        self._usage.num_cached_tokens += delta.num_cached_tokens
        self._num_open -= 1
        reason = FINISH_REASONS[delta.end] if delta.end is not None else "stop"
        self._metrics.num_success[reason] = self._metrics.num_success.get(reason, 0) + 1
        if self._num_open == 0:
            self._begun.set()
            self._over.set()

    def _count(self, choice: int, delta: Delta, now: float) -> None:
        num_tokens = delta.stop - delta.start
        if num_tokens == 0:
            return
        self._metrics.num_generation_tokens += num_tokens
        self._usage.num_completion_tokens += num_tokens
        last_at = self._last_at[choice]
        if last_at:
            self._metrics.inter_token_latency.observe(now - last_at)
        elif not self._first_at:
            self._first_at = now
            self._metrics.time_to_first_token.observe(now - self._started_at)
        self._last_at[choice] = now

    def _count_success(self) -> None:
        now = time.monotonic()
        self._metrics.e2e_latency.observe(now - self._started_at)
        num_later = self._usage.num_completion_tokens - 1
        if num_later > 0:
            self._metrics.time_per_output_token.observe((now - self._first_at) / num_later)
