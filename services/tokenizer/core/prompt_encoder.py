"""From the text of a prompt or the messages of a chat to token ids."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tokenizers import Tokenizer

from services.tokenizer.core.chat_template import ChatTemplate
from services.tokenizer.core.client_text import (
    SpecialTokens,
    choose_mark,
    mark_message,
    mark_value,
    strings_in,
)
from shared.errors import RequestError, invalid
from shared.params.fields import check_text

SHRINKING_NORMALIZER_FACTOR = 4


class PromptEncoder:
    """Encodes for one model; safe to use from several threads at once.

    tokenizer parses special tokens, plain is the same tokenizer with encode_special_tokens set: it takes them as text.
    bos_token_id: the BOS that the tokenizer adds by itself, None if it adds none.
    """

    def __init__(
        self, tokenizer: Tokenizer, plain: Tokenizer, template: ChatTemplate | None, bos_token_id: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._plain = plain
        plain.encode_special_tokens = True
        self._template = template
        self._bos_token_id = bos_token_id
        added = tokenizer.get_added_tokens_decoder()
        self._special = SpecialTokens({token.content: token_id for token_id, token in added.items() if token.special})
        tokens = tokenizer.get_vocab(with_added_tokens=True)
        self._max_token_bytes = max((len(token.encode()) for token in tokens), default=1)
        if tokenizer.normalizer is not None:
            self._max_token_bytes *= SHRINKING_NORMALIZER_FACTOR

    def encode_text(self, text: str, add_special_tokens: bool, max_tokens: int) -> list[int]:
        """Token ids of a completion's prompt: the client writes the whole input, special tokens by name included.

        A BOS that the client wrote is not doubled. max_tokens: the context length; a text that cannot fit it by its
        mere size is refused without being encoded, which bounds the CPU time of a request.
        """
        self._check_size(text, max_tokens, "prompt")
        return self._without_second_bos(_encode(self._tokenizer, text, add_special_tokens))

    def encode_word(self, text: str) -> list[int]:
        """Token ids of a piece of text, special tokens in it taken as text."""
        return _encode(self._plain, text, False)

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool,
        add_special_tokens: bool,
        template_arguments: Mapping[str, Any],
        max_tokens: int,
    ) -> list[int]:
        """Token ids of checked messages. Special tokens come from the template alone, never from a message.

        Raises RequestError without a template, and where the template refuses the messages.
        """
        template = self._template
        if template is None:
            raise invalid("This model has no chat template; use /v1/completions.", "messages")
        if not template.knows_developer:
            messages = [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
        try:
            mark = choose_mark([*strings_in(list(messages)), *strings_in(dict(template_arguments))])
            marked = [mark_message(message, self._special, mark) for message in messages]
            extra = mark_value(dict(template_arguments), self._special, mark)
        except RecursionError:
            raise _too_deep() from None
        text = template.render(marked, now=now, add_generation_prompt=add_generation_prompt, extra=extra)
        self._check_size(text, max_tokens, "messages")
        check_text(text, "messages")
        if mark in text:
            token_ids = self._encode_marked(text, mark, add_special_tokens)
        else:
            token_ids = _encode(self._tokenizer, text, add_special_tokens)
        return self._without_second_bos(token_ids)

    def _encode_marked(self, text: str, mark: str, add_special_tokens: bool) -> list[int]:
        token_ids = _encode(self._tokenizer, "", add_special_tokens)
        for piece in self._special.split(text):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += _encode(self._plain, piece.replace(mark, ""), False)
        return token_ids

    def _without_second_bos(self, token_ids: list[int]) -> list[int]:
        if self._bos_token_id is not None and token_ids[:2] == [self._bos_token_id] * 2:
            del token_ids[0]
        return token_ids

    def _check_size(self, text: str, max_tokens: int, param: str) -> None:
        size = len(text.encode(errors="surrogatepass"))
        if size > max_tokens * self._max_token_bytes:
            raise invalid(
                f"This model's maximum context length is {max_tokens} tokens. However, your prompt has {size} bytes, "
                f"which is more than {max_tokens} tokens can hold. Please reduce the length of the prompt.",
                param,
                "context_length_exceeded",
            )


class TokenizerPanic(RuntimeError):
    """The tokenizer library failed on an input. Its own exception is no Exception and would end the process."""


def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """encode_batch_fast lets other threads run meanwhile; encode would stop them."""
    try:
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":
            raise TokenizerPanic(str(error)) from error
        raise


def _too_deep() -> RequestError:
    return invalid("The messages are nested too deep.", "messages")
