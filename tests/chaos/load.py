"""A fixed number of streams at once, each begun anew when it ends."""

import asyncio
import random
import secrets
from itertools import pairwise
from typing import Any

from bench.prompts import WORDS
from tests.chaos.ledger import Entry, Ledger
from tests.chaos.reading import StreamReader
from tests.chaos.stalls import StallWatch
from tests.chaos.words import Words

SLOW_S = 2.5
MAX_SLOW = 40


class Load:
    """num_streams readers at once. max_tokens: the longest answer; lengths and prompts are drawn from the seed.

    slow: what happened to streams that stood still for SLOW_S or more.
    """

    def __init__(
        self, ports: list[int], words: Words, num_streams: int, max_tokens: int, seed: int, ledger: Ledger
    ) -> None:
        self.watch = StallWatch()
        self.slow: list[dict[str, Any]] = []
        self._ports = ports
        self._words = words
        self._num_streams = num_streams
        self._max_tokens = max_tokens
        self._draw = random.Random(seed)
        self._ledger = ledger
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until stop: then every stream is read to its end."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._num_streams):
                group.create_task(self._repeat(number))

    def stop(self) -> None:
        """Begin no more streams."""
        self._stopping.set()

    async def _repeat(self, number: int) -> None:
        await asyncio.sleep(0.02 * number)
        while not self._stopping.is_set():
            num_tokens = self._draw.randint(self._max_tokens // 10, self._max_tokens)
            entry = Entry(secrets.token_hex(8), num_tokens, asyncio.get_running_loop().time())
            self._ledger.begin(entry)
            body = make_body(self._words.model, self._draw, num_tokens)
            if number % 4 == 0:  # these stop and resume between the bytes of a character most of the time
                body["allowed_token_ids"] = self._words.byte_ids
            await StreamReader(entry, body, self._ports, self.watch, self._draw).run()
            self._ledger.end(entry)
            self._look_at(entry)

    def _look_at(self, entry: Entry) -> None:
        """Keep what happened to a stream that stood still for long."""
        gaps = [(later - earlier, earlier) for earlier, later in pairwise(entry.arrivals)]
        seconds, begun_at = max(gaps, default=(0.0, 0.0))
        if seconds >= SLOW_S and len(self.slow) < MAX_SLOW:
            slow = {"request_id": entry.request_id, "stall_s": round(seconds, 2), "begun_at": round(begun_at, 2)}
            self.slow.append({**slow, "notes": entry.notes})


def make_body(model: str, draw: random.Random, num_tokens: int) -> dict[str, Any]:
    """A request for exactly num_tokens tokens after a prompt of a few words."""
    return {
        "model": model,
        "prompt": " ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 60))),
        "max_tokens": num_tokens,
        "min_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
