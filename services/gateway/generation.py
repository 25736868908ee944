"""One HTTP answer from its first request to a tokenizer or detokenizer to its last byte."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from services.gateway.core.answers import Gathering, Usage
from services.gateway.core.events import EventFormat, error_event
from services.gateway.core.shape import AnswerShape
from services.gateway.http.exchange import Exchange
from services.gateway.metrics import ModelMetrics
from shared.endings import FINISH_REASONS
from shared.errors import RequestError, timed_out
from shared.messages.pipeline import Accepted, Delta
from shared.reading.outcome import failure
from shared.reading.stream import OnDelta

DEADLINE_GRACE_S = 5.0


class Prompt(Protocol):
    """What is read for one prompt: a PromptRequest, or a JoinedPrompt."""

    async def start(self) -> Accepted: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abandon(self) -> None: ...


class Generation:
    """Starts all prompts, reads their text, answers.

    open_prompts: one for each prompt, given where its deltas go. positions: tokens of each choice that the client has
    already. deadline_s: seconds from now until the requests' own deadline; somewhat later the log is trusted no longer
    to tell of their end. limit_s: seconds from now after which this client wants no answer, None if it waits for the
    end. is_kept: whether the requests go on when this answer breaks off.

    Deltas come in as their batch arrives (_on_delta) and leave in the same call: a token costs no task switch. No
    HTTP status is sent before the first delta or end (rule 13). Whatever way it ends, every prompt is abandoned, which
    cancels in the log what nobody else may read.
    """

    def __init__(
        self,
        shape: AnswerShape,
        open_prompts: Sequence[Callable[[OnDelta], Prompt]],
        exchange: Exchange,
        metrics: ModelMetrics,
        *,
        deadline_s: float,
        limit_s: float | None = None,
        is_kept: bool,
        positions: Sequence[int] | None = None,
    ) -> None:
        self._exchange = exchange
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._limit_s = limit_s
        self._is_kept = is_kept
        positions = positions or [0] * shape.num_choices
        self._usage = Usage(num_completion_tokens=sum(positions))
        self._format = EventFormat(shape, positions, self._usage) if shape.stream else None
        self._gathering = None if shape.stream else Gathering(shape)
        self._prompts = [
            open_prompt(functools.partial(self._on_delta, index * shape.n))
            for index, open_prompt in enumerate(open_prompts)
        ]
        self._num_open = shape.num_choices
        self._error: RequestError | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._held: list[tuple[int, Delta, float]] | None = []
        self._started_at = time.monotonic()
        self._first_at = 0.0
        self._last_at = [0.0] * shape.num_choices

    async def run(self) -> None:
        """Answer the request. Raises RequestError as long as no status was sent."""
        end_s = self._deadline_s + DEADLINE_GRACE_S
        is_limited = self._limit_s is not None and self._limit_s < end_s
        try:
            async with asyncio.timeout(self._limit_s if is_limited else end_s):
                await self._answer()
        except TimeoutError:
            limited = "The time that this client gave has passed; the request goes on."
            await self._answer_failure(timed_out(limited if is_limited else "The deadline of the request has passed."))
        finally:
            self._exchange.num_tokens = (self._usage.num_prompt_tokens, self._usage.num_completion_tokens)
            for prompt in self._prompts:
                prompt.abandon()

    def fail(self, error: RequestError) -> None:
        """End the answer with an error; what runs is cancelled, or left if it is kept."""
        self._error = self._error or error
        self._begun.set()
        self._over.set()

    def leave(self, error: RequestError) -> None:
        """The same when it is this gateway that goes: the client of a kept request is told that it can read on."""
        if self._is_kept:
            message = f"{error.message} The request goes on: read on from the last event's id on another server."
            error = RequestError(message, error.param, error.code, error.status, error.type, error.retry_after_s)
        self.fail(error)

    async def _answer(self) -> None:
        accepted = await self._submit()
        prompt_token_ids = [each.prompt_token_ids for each in accepted]
        self._usage.num_prompt_tokens = sum(each.num_prompt_tokens for each in accepted)
        self._metrics.num_prompt_tokens += self._usage.num_prompt_tokens
        if self._format is not None:
            self._format.prompt_token_ids = prompt_token_ids
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
        if len(self._prompts) == 1:
            return [await self._prompts[0].start()]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(prompt.start()) for prompt in self._prompts]
        except* RequestError as errors:
            refusals = [error for error in errors.exceptions if isinstance(error, RequestError)]
        else:
            return [task.result() for task in tasks]
        raise refusals[0]

    async def _start_events(self, events: EventFormat) -> None:
        await self._exchange.start_events()
        held, self._held = self._held or [], None
        parts = [events.first_events(), *(self._event(events, choice, delta, now) for choice, delta, now in held)]
        self._exchange.connection.on_pause = self._pause
        self._exchange.connection.on_resume = self._resume
        self._exchange.write_event(b"".join(parts))

    def _pause(self) -> None:
        for prompt in self._prompts:
            prompt.pause()

    def _resume(self) -> None:
        for prompt in self._prompts:
            prompt.resume()

    # ---- per delta

    def _on_delta(self, first_choice: int, delta: Delta, now: float) -> None:
        """Called as a batch arrives, for every delta of every stream: the hot path of a gateway."""
        if self._error is not None:
            return
        if delta.end is not None or delta.error is not None:
            error = failure(delta)
            if error is not None:
                self.fail(error)
                return
        choice = first_choice + delta.choice
        if self._gathering is not None:
            self._count(choice, delta, now)
            self._gathering.on_delta(choice, delta)
        elif self._held is not None:
            self._held.append((choice, delta, now))
            self._begun.set()
        elif self._format is not None:
            self._count(choice, delta, now)
            self._exchange.write_event(self._format.event(choice, delta))
        if delta.end is not None:
            self._on_end(delta)

    def _event(self, events: EventFormat, choice: int, delta: Delta, now: float) -> bytes:
        self._count(choice, delta, now)
        return events.event(choice, delta)

    def _on_end(self, delta: Delta) -> None:
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
        metrics, last_at = self._metrics, self._last_at[choice]
        metrics.num_generation_tokens += num_tokens
        self._usage.num_completion_tokens += num_tokens
        if last_at:
            metrics.inter_token_latency.observe(now - last_at)
        elif not self._first_at:
            self._first_at = now
            metrics.time_to_first_token.observe(now - self._started_at)
        self._last_at[choice] = now

    def _count_success(self) -> None:
        now = time.monotonic()
        self._metrics.e2e_latency.observe(now - self._started_at)
        num_later = self._usage.num_completion_tokens - 1
        if num_later > 0:
            self._metrics.time_per_output_token.observe((now - self._first_at) / num_later)
