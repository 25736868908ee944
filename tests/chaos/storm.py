"""Clients that leave: each request is cancelled by a disconnect at a moment drawn from the seed."""

import asyncio
import random
import secrets
from collections import Counter

from tests.chaos.ledger import Entry, Ledger
from tests.chaos.load import make_body
from tests.chaos.sse_client import Event, SseConnection, post
from tests.waiting import LIMIT_S

MOMENTS = ("before accept", "queued", "prefill", "decode", "last token")
MAX_SECONDS = {"before accept": 0.002, "queued": 0.02, "prefill": 0.06}
MAX_TOKENS = 24


class Storm:
    """num_requests requests, num_at_once at a time. Those of "last token" may win the race and end as usual.

    moments: how many left when, and how many of them had been answered at all.
    """

    def __init__(self, ports: list[int], model: str, seed: int, ledger: Ledger) -> None:
        self._ports = ports
        self._model = model
        self._draw = random.Random(seed)
        self._ledger = ledger
        self.moments: Counter[str] = Counter()

    async def run(self, num_requests: int, num_at_once: int) -> None:
        """All of them."""
        numbers = iter(range(num_requests))

        async def work() -> None:
            for _ in numbers:
                await self._one()

        await asyncio.gather(*(work() for _ in range(num_at_once)))

    async def _one(self) -> None:
        draw = self._draw
        moment = draw.choice(MOMENTS)
        num_tokens = draw.randint(2, MAX_TOKENS)
        leaves_after = draw.randint(1, num_tokens) if moment == "decode" else num_tokens
        entry = Entry(secrets.token_hex(8), num_tokens, asyncio.get_running_loop().time(), "storm")
        enough = asyncio.Event()

        def on_event(position: int, event: Event) -> None:
            entry.request_id = entry.request_id or event.id.removeprefix("cmpl-")
            for choice in event.choices:
                entry.token_ids.extend(choice.token_ids)
                entry.finish_reason = choice.finish_reason or entry.finish_reason
            if event.error is not None:
                entry.error = str(event.error)
            if len(entry.token_ids) >= leaves_after or event.error is not None:
                enough.set()

        self._ledger.begin(entry)
        body = make_body(self._model, draw, num_tokens)
        try:
            connection = await SseConnection.open(draw.choice(self._ports), post(body, {}), on_event)
        except (OSError, TimeoutError) as error:
            entry.error = repr(error)
        else:
            await self._leave(connection, enough, MAX_SECONDS.get(moment))
        if entry.error:
            entry.outcome = "failed"
        else:
            entry.outcome = "finished" if entry.finish_reason in ("stop", "length") else "cancelled"
        self.moments[moment] += 1
        self.moments[f"{moment}, answered"] += bool(entry.request_id)
        self._ledger.end(entry)

    async def _leave(self, connection: SseConnection, enough: asyncio.Event, most_s: float | None) -> None:
        limit_s = LIMIT_S if most_s is None else self._draw.uniform(0, most_s)
        waits = [asyncio.ensure_future(event.wait()) for event in (enough, connection.closed)]
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        connection.close()
