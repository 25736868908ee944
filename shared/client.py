"""The native client: asking for generations over NATS, without HTTP.

    async with await TokenbusClient.connect("nats://127.0.0.1:4222") as client:
        async for event in client.stream(prompt="Once upon a time", max_tokens=64):
            if isinstance(event, TextEvent):
                print(event.text, end="")

Streams survive the death of every service and of the NATS server: the client attaches again from the position that it
has read up to. To read on in another process, keep the request id and each choice's TextEvent.stop:

        async for event in client.attach(request_id, [stop]):
            ...

docs/nats-clients.md describes the messages for clients in other languages.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from shared import subjects
from shared.bus.client import Bus
from shared.bus.credentials import ANONYMOUS, Credentials
from shared.bus.errors import BusError
from shared.endings import FINISH_REASONS
from shared.errors import RequestError, timed_out, unavailable
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import Cancelled, CancelRequest, ModelCard, TokenizerHeartbeat
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import PROTOCOL_VERSION, Delta, GenerateRequest, Refused, TokenLogprob
from shared.params import validate_params
from shared.reading.hub import StreamHub
from shared.reading.outcome import failure
from shared.reading.stream import Stream
from shared.reading.submission import NotStored, fix_defaults, submit

DEFAULT_SHARD = "s0"
DEADLINE_S = 600.0
DEADLINE_GRACE_S = 5.0
DISCOVERY_TIMEOUT_S = 5.0
CANCEL_TIMEOUT_S = 5.0
CANCEL_ATTEMPT_S = 1.0
CANCEL_WAIT_S = 0.1

_decode_tokenizer = decoder(TokenizerHeartbeat)
_decode_cancelled = decoder(Cancelled | Refused)


class AcceptedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The request is stored in the log of shard: from here on it survives every crash."""

    request_id: str
    shard: str
    num_prompt_tokens: int


class TextEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Text of one choice between the token positions start and stop; stop is where attach would go on."""

    choice: int
    start: int
    stop: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]


class EndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A choice has ended after num_tokens tokens. finish_reason: stop, length or abort, as over HTTP; stop_reason: the
    stop string or stop token id that ended it."""

    choice: int
    finish_reason: str
    stop_reason: str | int | None
    num_tokens: int


StreamEvent = AcceptedEvent | TextEvent | EndEvent


class Choice(msgspec.Struct, kw_only=True):
    """One finished answer."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish_reason: str = ""
    stop_reason: str | int | None = None


class Generation(msgspec.Struct, kw_only=True):
    """All answers to one request; counts in tokens."""

    request_id: str
    choices: list[Choice]
    num_prompt_tokens: int
    num_completion_tokens: int


class TokenbusClient:
    """One connection. Create with TokenbusClient.connect; use as an async context manager or call close."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._hub = StreamHub(bus)

    @classmethod
    async def connect(
        cls, nats_url: str, name: str = "client", credentials: Credentials = ANONYMOUS
    ) -> "TokenbusClient":
        """Connect, waiting for the server as long as it takes; wrap in asyncio.timeout to bound it.

        nats_url: of one server, or of several of one cluster with commas between. credentials: read_credentials gives
        them; a secured server lets nobody in without.
        """
        client = cls(await Bus.connect(nats_url, name, credentials, role="client"))
        await client._hub.start()
        return client

    async def close(self) -> None:
        """Close the connection; streams that still run get no more text, and are not cancelled."""
        await self._hub.stop()
        await self._bus.close()

    async def __aenter__(self) -> "TokenbusClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def models(self, timeout_s: float = DISCOVERY_TIMEOUT_S) -> list[ModelCard]:
        """What the next tokenizer heard of can serve. RequestError 503 when none is heard within timeout_s."""
        heard: asyncio.Future[list[ModelCard]] = asyncio.get_running_loop().create_future()

        def on_heartbeat(subject: str, reply: str, data: bytes, headers: bytes) -> None:
            with contextlib.suppress(WireError):
                heartbeat = _decode_tokenizer(data)
                if heartbeat.models and not heard.done():
                    heard.set_result(heartbeat.models)

        subscription = await self._bus.subscribe(subjects.TOKENIZER_HEARTBEAT, on_heartbeat)
        try:
            async with asyncio.timeout(timeout_s):
                return await heard
        except TimeoutError:
            raise unavailable("No tokenizer was heard of: is Tokenbus running?") from None
        finally:
            await subscription.unsubscribe()

    async def stream(
        self,
        *,
        prompt: str | list[int] | None = None,
        messages: list[dict[str, Any]] | None = None,
        model: str | None = None,
        request_id: str | None = None,
        deadline_s: float = DEADLINE_S,
        **params: Any,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Ask, and yield what comes: AcceptedEvent, then TextEvents, one EndEvent per choice.

        model: None for the first one served. params: OpenAI's and vLLM's names. Raises RequestError for a refusal and
        for a failure on the way. Leaving the iteration early (close it with contextlib.aclosing) cancels the request.
        """
        checked = validate_params(params, chat=messages is not None)
        request = fix_defaults(
            GenerateRequest(
                v=PROTOCOL_VERSION,
                model=model or (await self.models())[0].name,
                prompt=prompt,
                messages=messages,
                params=params,
                deadline_s=deadline_s,
                request_id=request_id,
                attach=False,
            )
        )
        whole_id = request.request_id or ""
        is_finished = False
        try:
            accepted = await submit(self._bus, request)
            yield AcceptedEvent(request_id=whole_id, shard=accepted.shard, num_prompt_tokens=accepted.num_prompt_tokens)
            reading = self.attach(whole_id, num_choices=checked.n, shard=accepted.shard, deadline_s=deadline_s)
            async with contextlib.aclosing(reading) as events:
                async for event in events:
                    yield event
            is_finished = True
        except NotStored:
            is_finished = True
            raise
        finally:
            if not is_finished:
                with contextlib.suppress(RequestError):  # without a tokenizer the deadline will end it
                    await self.cancel(whole_id)

    async def attach(
        self,
        request_id: str,
        positions: Sequence[int] = (),
        *,
        num_choices: int = 1,
        shard: str = DEFAULT_SHARD,
        deadline_s: float = DEADLINE_S,
    ) -> AsyncGenerator[TextEvent | EndEvent, None]:
        """Yield the text of an accepted request from token positions on (one per choice; () for the start of each of
        num_choices). Leaving the iteration early only stops reading. Raises RequestError."""
        await self._hub.follow(shard)
        queue: asyncio.Queue[Delta] = asyncio.Queue()
        stream = Stream(request_id, shard, num_choices, lambda delta, _: queue.put_nowait(delta), positions)
        num_open = len(stream.positions)
        self._hub.attach(stream)
        until = asyncio.get_running_loop().time() + deadline_s + DEADLINE_GRACE_S
        try:
            while num_open:
                delta = await _next(queue, until)
                error = failure(delta)
                if error is not None:
                    raise error
                if delta.stop > delta.start or delta.text:
                    yield _text_event(delta)
                if delta.end is not None:
                    num_open -= 1
                    yield EndEvent(
                        choice=delta.choice,
                        finish_reason=FINISH_REASONS[delta.end],
                        stop_reason=delta.stop_reason,
                        num_tokens=delta.stop,
                    )
        finally:
            self._hub.detach(stream)

    async def generate(self, **request: Any) -> Generation:
        """The whole answer; takes what stream takes."""
        choices: dict[int, Choice] = {}
        generation = Generation(request_id="", choices=[], num_prompt_tokens=0, num_completion_tokens=0)
        async with contextlib.aclosing(self.stream(**request)) as events:
            async for event in events:
                if isinstance(event, AcceptedEvent):
                    generation.request_id = event.request_id
                    generation.num_prompt_tokens = event.num_prompt_tokens
                    continue
                choice = choices.setdefault(event.choice, Choice(index=event.choice))
                if isinstance(event, TextEvent):
                    choice.text += event.text
                    choice.token_ids += event.token_ids
                    choice.logprobs += event.logprobs
                else:
                    choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
                    generation.num_completion_tokens += event.num_tokens
        generation.choices = [choices[index] for index in sorted(choices)]
        return generation

    async def cancel(self, request_id: str, timeout_s: float | None = None) -> None:
        """End a request; whoever reads it gets finish_reason abort. Harmless when it has ended already.

        Returns once the end is in the log. Raises RequestError, 503 if no tokenizer has written it within timeout_s.
        """
        data = encode(CancelRequest(request_id=request_id))
        until = asyncio.get_running_loop().time() + (CANCEL_TIMEOUT_S if timeout_s is None else timeout_s)
        while True:
            try:
                answer = _decode_cancelled(await self._bus.request(subjects.CANCEL, data, CANCEL_ATTEMPT_S))
            except (BusError, TimeoutError, WireError):
                if asyncio.get_running_loop().time() >= until:
                    raise unavailable("No tokenizer has taken the cancellation.") from None
                await asyncio.sleep(CANCEL_WAIT_S)
                continue
            if isinstance(answer, Refused):
                raise RequestError.from_refused(answer)
            return


async def _next(queue: asyncio.Queue[Delta], until: float) -> Delta:
    try:
        async with asyncio.timeout_at(until):
            return await queue.get()
    except TimeoutError:
        raise timed_out("No text came within the deadline of the request.") from None


def _text_event(delta: Delta) -> TextEvent:
    return TextEvent(
        choice=delta.choice,
        start=delta.start,
        stop=delta.stop,
        text=delta.text,
        token_ids=unpack_tokens(delta.token_ids).tolist(),
        logprobs=delta.logprobs,
    )
