"""A client that reads events and keeps what it needs to read on: the ids of events, and every choice's tokens."""

import contextlib
import json
from typing import Any

import httpx


class EventReader:
    """One answer, in one part or several. is_whole: the last part ended with [DONE]. error: how it broke off.

    stop_after: leave after so many tokens.
    """

    def __init__(self, stop_after: int | None = None) -> None:
        self.answer_id = ""
        self.created = 0
        self.last_id = ""
        self.texts: dict[int, str] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.finish_reasons: dict[int, str] = {}
        self.is_whole = False
        self.error = ""
        self._stop_after = stop_after

    @property
    def request_id(self) -> str:
        """The id without OpenAI's prefix."""
        return self.answer_id.rpartition("-")[2]

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices so far."""
        return sum(map(len, self.token_ids.values()))

    def continued(self) -> "EventReader":
        """A reader that knows what this one has read."""
        reader = EventReader()
        reader.texts = dict(self.texts)
        reader.token_ids = {choice: list(ids) for choice, ids in self.token_ids.items()}
        return reader

    def until(self, num_tokens: int) -> "EventReader":
        """A reader that has only the first tokens of the single choice."""
        reader = EventReader()
        reader.token_ids = {0: self.token_ids[0][:num_tokens]}
        return reader

    async def read(self, client: httpx.AsyncClient, method: str, path: str, **request: Any) -> None:
        """Read one answer to its end, its error, or the end of its connection."""
        try:
            async with client.stream(method, path, **request) as response:
                if response.status_code != 200:
                    self.error = (await response.aread()).decode()
                    return
                async with contextlib.aclosing(response.aiter_lines()) as lines:
                    async for line in lines:
                        if self._take(line):
                            return
                self.error = self.error or "the stream ended without [DONE]"
        except httpx.HTTPError as error:
            self.error = repr(error)

    def _take(self, line: str) -> bool:
        """One line; whether it was the last one wanted."""
        name, _, value = line.partition(": ")
        if name == "id":
            self.last_id = value
        elif line == "data: [DONE]":
            self.is_whole = True
            return True
        elif name == "data":
            self._take_event(json.loads(value))
        return self._stop_after is not None and self.num_tokens >= self._stop_after

    def _take_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = json.dumps(event["error"])
            return
        self.answer_id, self.created = event["id"], event["created"]
        for choice in event["choices"]:
            index = choice["index"]
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or [])
            if choice["finish_reason"]:
                self.finish_reasons[index] = choice["finish_reason"]
