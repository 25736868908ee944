"""One request read to its end through whatever gateway lives: the client of a stream that survives its gateway."""

import asyncio
import json
import random
from array import array
from typing import Any

from tests.chaos.ledger import FINISHED, Entry
from tests.chaos.sse_client import Event, SseConnection, post, resume
from tests.chaos.stalls import StallWatch

SILENCE_S = 3.0  # a gateway that says nothing for so long is left for another one
RETRY_S = 0.05
REFUSED_RETRY_S = 0.25
GIVE_UP_S = 45.0  # without a byte from any gateway; below the 60 s for which a request without readers is kept
RETRIABLE = (404, 408, 409, 429, 500, 502, 503, 504)


class StreamReader:
    """Reads one entry's stream.

    ports: the first one is shared by all gateways, whoever lives accepts there; each further one is of one gateway.
    The first connection goes to any of them, those after a break to the shared one.
    """

    def __init__(
        self, entry: Entry, body: dict[str, Any], ports: list[int], watch: StallWatch, draw: random.Random
    ) -> None:
        self.entry = entry
        self._body = body
        self._shared_port = ports[0]
        self._watch = watch
        self._port = draw.choice(ports)
        self._connection: SseConnection | None = None
        self._served_at = entry.begun_at
        self._last_at = 0.0

    async def run(self) -> None:
        """Read to the end or give up; the outcome stands in the entry."""
        loop = asyncio.get_running_loop()
        entry = self.entry
        while not entry.outcome:
            now = loop.time()
            if now - self._served_at > GIVE_UP_S:
                entry.outcome, entry.error = "failed", entry.error or "no gateway serves it"
                break
            pause_s = await self._attempt()
            if not entry.outcome:
                self._port = self._shared_port
                await asyncio.sleep(pause_s)
        entry.ended_at = loop.time()
        self._watch.on_end(entry.key)

    async def _attempt(self) -> float:
        """One connection; returns the pause before the next one."""
        entry = self.entry
        port = self._port
        if entry.request_id:
            request = resume(entry.request_id, len(entry.token_ids))
        else:
            headers = {"Idempotency-Key": entry.key, "X-Tokenbus-Resumable": "1"}
            request = post(self._body, headers)
        try:
            self._connection = connection = await SseConnection.open(port, request, self._on_event)
        except (OSError, TimeoutError) as error:
            self._note(f"{port}: {error!r}")
            return RETRY_S
        await self._until_closed(connection)
        self._connection = None
        if connection.is_whole and not entry.error:
            entry.outcome = "finished" if entry.finish_reason in FINISHED else "failed"
        elif connection.status == 200:
            self._note(f"{port}: broke at {len(entry.token_ids)}")
        elif connection.status:
            return self._on_refusal(port, connection)
        else:
            self._note(f"{port}: no answer")
        return RETRY_S

    async def _until_closed(self, connection: SseConnection) -> None:
        loop = asyncio.get_running_loop()
        while not connection.closed.is_set():
            left = connection.heard_at + SILENCE_S - loop.time()
            if left <= 0:
                self._note("silent")
                break
            try:
                async with asyncio.timeout(left):
                    await connection.closed.wait()
            except TimeoutError:
                continue
        connection.close()

    def _on_refusal(self, port: int, connection: SseConnection) -> float:
        text = connection.body[:300].decode(errors="replace")
        self._note(f"{port}: {connection.status} {text}")
        if connection.status not in RETRIABLE:
            self.entry.outcome, self.entry.error = "failed", f"{connection.status} {text}"
        return REFUSED_RETRY_S if connection.status in (429, 503) else RETRY_S

    def _on_event(self, position: int, event: Event) -> None:
        entry = self.entry
        now = asyncio.get_running_loop().time()
        self._served_at = now
        if event.error is not None:
            self._on_error(event.error)
            return
        if event.id and not entry.request_id:
            entry.request_id = event.id.removeprefix("cmpl-")
        if event.usage is not None:
            entry.num_billed = event.usage.completion_tokens
        for choice in event.choices:
            if choice.text:
                entry.text.append(choice.text)
            if choice.token_ids:
                self._on_tokens(choice.token_ids, position, now)
            entry.finish_reason = choice.finish_reason or entry.finish_reason

    def _on_tokens(self, token_ids: list[int], position: int, now: float) -> None:
        entry = self.entry
        self._watch.on_tokens(entry.key, len(token_ids), now)
        entry.token_ids.extend(token_ids)
        entry.arrivals.extend(array("d", [now]) * len(token_ids))
        if position >= 0 and position != len(entry.token_ids):
            self._note(f"position {position} after {len(entry.token_ids)} tokens")

    def _on_error(self, error: dict[str, Any]) -> None:
        """An error event ends this connection; only a gateway that goes away is no failure of the request."""
        self._note(f"error event: {json.dumps(error)}")
        if error.get("type") != "service_unavailable_error":
            self.entry.outcome, self.entry.error = "failed", json.dumps(error)
        if self._connection is not None:
            self._connection.close()

    def _note(self, text: str) -> None:
        self.entry.note(f"{asyncio.get_running_loop().time():.2f} {text}")
