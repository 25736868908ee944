"""Server-sent events of OpenAI's streaming answers, read in pieces of any size.

Every event is decoded, but only into the few fields that matter here: about a microsecond for one.
"""

import msgspec


class _Delta(msgspec.Struct):
    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    role: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _ErrorBody(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


class EventReader:
    """is_done: [DONE] was read. finish_reason: the last one told. error: of the server's error event, or what cannot be
    read; "" if neither."""

    __slots__ = (
        "_rest",
        "code",
        "error",
        "finish_reason",
        "is_done",
        "num_events",
        "num_prompt_tokens",
        "num_usage_tokens",
    )

    def __init__(self) -> None:
        self.is_done = False
        self.error = ""
        self.code = ""
        self.finish_reason = ""
        self.num_events = 0
        self.num_prompt_tokens: int | None = None
        self.num_usage_tokens: int | None = None
        self._rest = b""

    def feed(self, data: bytes) -> int:
        """Part of the body; the number of events with a token that it completed."""
        if self._rest:
            data = self._rest + data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        before = self.num_events
        for line in lines:
            if line.startswith(b"data:"):
                self._on_data(line[5:].strip())
        return self.num_events - before

    def _on_data(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            self.error = self.error or f"an event that cannot be read: {error}"
            return
        if event.error is not msgspec.UNSET and bytes(event.error) != b"null":
            message, self.code = read_error(bytes(event.error))
            self.error = self.error or message
        if event.usage is not None:
            self.num_prompt_tokens = event.usage.prompt_tokens
            self.num_usage_tokens = event.usage.completion_tokens
        if event.choices:
            self._on_choices(event.choices)

    def _on_choices(self, choices: list[_Choice]) -> None:
        """An event with tokens of several choices is one event."""
        self.num_events += any(map(_has_token, choices))
        for choice in choices:
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason


def _has_token(choice: _Choice) -> bool:
    """Not so an event that only opens the answer with a role, or only tells why it ended.

    One without text in between does: a token may be half a character.
    """
    if choice.text or choice.token_ids:
        return True
    delta = choice.delta
    if delta is not None and (delta.content or delta.reasoning_content):
        return True
    return choice.finish_reason is None and (delta is None or delta.role is None)


def read_error(body: bytes) -> tuple[str, str]:
    """Message and code of an error object, with or without its envelope; the text itself if it is none."""
    try:
        outer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        found = _decode_error(outer.get("error", msgspec.Raw(body)))
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace").strip() or "an error without a text", ""
    return found.message or "an error without a message", "" if found.code is None else str(found.code)
