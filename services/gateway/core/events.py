"""A streamed answer: each delta becomes one server-sent event in OpenAI's shape.

The bytes before and after the text are the same for every event of a choice and are made once; only the text is
encoded as JSON. `id:` of an event is the token position of every choice (`12-9-10`), from which a client can resume.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.core.answers import Usage
from services.gateway.core.logprob_format import chat_logprobs, completion_logprobs
from services.gateway.core.shape import AnswerShape
from shared.endings import FINISH_REASONS
from shared.errors import RequestError
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class EventFormat:
    """Events of one HTTP request. usage is the caller's, read whenever an event has to tell it. positions: tokens of
    each choice that the client has already.

    prompt_token_ids: per prompt, set by the caller once they are known and before the first event.
    """

    def __init__(self, shape: AnswerShape, positions: Sequence[int], usage: Usage) -> None:
        self._chat = shape.chat
        self._usage = usage
        self._include_usage = shape.include_usage
        self._continuous_usage = shape.continuous_usage
        self._wants_logprobs = shape.has_logprobs
        self._return_token_ids = shape.return_token_ids
        self._is_plain = not (self._wants_logprobs or self._return_token_ids or self._continuous_usage)
        self._positions = list(positions)
        self._is_single = len(self._positions) == 1
        self._num_choices_per_prompt = shape.n
        self.prompt_token_ids: Sequence[list[int] | None] = [None] * shape.num_prompts
        self._head: dict[str, Any] = {
            "id": shape.id,
            "object": "chat.completion.chunk" if shape.chat else "text_completion",
            "created": shape.created,
            "model": shape.model,
        }
        self._before = [self._template(index)[0] for index in range(shape.num_choices)]
        self._after = self._template(0)[1]

    def _template(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and behind the text in an event that has nothing but text."""
        marker = "\x1f"
        before, _, after = self._event(index, marker, None, None, {}).partition(_encode(marker))
        return b"\ndata: " + before, after + b"\n\n"

    def first_events(self) -> bytes:
        """What comes before any text: in a chat, the role of each choice that begins."""
        if not self._chat:
            return b""
        events = []
        for index, position in enumerate(self._positions):
            if position:
                continue
            delta = {"role": "assistant", "content": ""}
            extra = {"prompt_token_ids": self.prompt_token_ids[0]} if self._return_token_ids else {}
            event = self._whole([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}], extra)
            events.append(b"data: %b\n\n" % event)
        return b"".join(events)

    def event(self, choice: int, delta: Delta) -> bytes:
        """One delta, of a choice of the whole answer."""
        stop = self._positions[choice] = delta.stop
        if self._is_plain and delta.end is None:
            if self._is_single:
                return b"id: %d%b%b%b" % (stop, self._before[0], _encode(delta.text), self._after)
            return b"id: %b%b%b%b" % (self._event_id(), self._before[choice], _encode(delta.text), self._after)
        finish_reason = FINISH_REASONS.get(delta.end) if delta.end is not None else None
        logprobs = self._logprobs(delta) if self._wants_logprobs else None
        event = self._event(choice, delta.text, finish_reason, logprobs, self._extras(choice, delta))
        return b"id: %b\ndata: %b\n\n" % (self._event_id(), event)

    def last_events(self) -> bytes:
        """What comes after all text."""
        if not self._include_usage:
            return DONE
        usage = _encode({**self._head, "choices": [], "usage": self._usage.as_object()})
        return b"data: %b\n\n%b" % (usage, DONE)

    def _event_id(self) -> bytes:
        if self._is_single:
            return b"%d" % self._positions[0]
        return "-".join(map(str, self._positions)).encode("ascii")

    def _logprobs(self, delta: Delta) -> dict[str, object]:
        return chat_logprobs(delta.logprobs) if self._chat else completion_logprobs(delta.logprobs)

    def _extras(self, choice: int, delta: Delta) -> dict[str, Any]:
        """Fields of the choice that only some requests want."""
        extras: dict[str, Any] = {}
        if delta.end is not None:
            extras["stop_reason"] = delta.stop_reason
        if self._return_token_ids:
            extras["token_ids"] = unpack_tokens(delta.token_ids).tolist()
            if delta.start == 0 and choice % self._num_choices_per_prompt == 0 and not self._chat:
                extras["prompt_token_ids"] = self.prompt_token_ids[choice // self._num_choices_per_prompt]
        return extras

    def _event(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: dict[str, object] | None,
        extras: dict[str, Any],
    ) -> bytes:
        content: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason, **extras}
        return self._whole([choice], {})

    def _whole(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        whole = {**self._head, "choices": choices, **extra}
        if self._include_usage:
            whole["usage"] = self._usage.as_object() if self._continuous_usage else None
        return _encode(whole)


def error_event(error: RequestError) -> bytes:
    """The last event of a stream that fails."""
    return b"event: error\ndata: %b\n\n" % _encode({"error": error.body()})
