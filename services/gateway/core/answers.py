"""A whole answer at once: choices are gathered and become one JSON object in OpenAI's shape."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.core.logprob_format import chat_logprobs, completion_logprobs
from services.gateway.core.shape import AnswerShape
from shared.endings import FINISH_REASONS
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta, TokenLogprob


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of one HTTP request; each prompt counts once, whatever n is."""

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0

    def as_object(self) -> dict[str, object]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }


class GatheredChoice:
    """One choice as it grows."""

    __slots__ = ("finish_reason", "logprobs", "stop_reason", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """The next part of it."""
        self.texts.append(delta.text)
        self.token_ids.extend(unpack_tokens(delta.token_ids))
        self.logprobs.extend(delta.logprobs)
        if delta.end is not None:
            self.finish_reason = FINISH_REASONS.get(delta.end)
            self.stop_reason = delta.stop_reason


class Gathering:
    """All choices of a request that wants its answer at once. prompt_token_ids: per prompt, where wanted."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._choices = [GatheredChoice() for _ in range(shape.num_choices)]

    def on_delta(self, choice: int, delta: Delta) -> None:
        """The next part of a choice of the whole answer."""
        self._choices[choice].add(delta)

    def body(self, usage: Usage, prompt_token_ids: Sequence[list[int] | None]) -> bytes:
        """The answer as JSON."""
        shape = self._shape
        build = self._chat_choice if shape.chat else self._completion_choice
        whole: dict[str, Any] = {
            "id": shape.id,
            "object": "chat.completion" if shape.chat else "text_completion",
            "created": shape.created,
            "model": shape.model,
            "choices": [build(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage.as_object(),
        }
        if shape.return_token_ids:
            if shape.chat:
                whole["prompt_token_ids"] = prompt_token_ids[0]
            for index, choice in enumerate(whole["choices"]):
                choice["token_ids"] = self._choices[index].token_ids
                if not shape.chat:
                    choice["prompt_token_ids"] = prompt_token_ids[index // shape.n]
        return msgspec.json.encode(whole)

    def _completion_choice(self, index: int, choice: GatheredChoice) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": completion_logprobs(choice.logprobs) if self._shape.has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _chat_choice(self, index: int, choice: GatheredChoice) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs) if self._shape.has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
