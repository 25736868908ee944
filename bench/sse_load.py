"""Load over plain sockets: many streaming completions at once, at little cost of its own.

The client counts events without decoding JSON, so that on a machine of two cores it takes little from the server.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from urllib.parse import urlparse

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother"
).split()


@dataclass(slots=True)
class Outcome:
    """One request. ok: status 200 and a whole stream. Times in seconds."""

    ok: bool = False
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_events: int = 0
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Load:
    """num_requests requests, concurrency at a time, each with num_words words in and max_tokens tokens out."""

    url: str
    model: str
    num_requests: int
    concurrency: int
    num_words: int = 48
    max_tokens: int = 128
    seed: int = 7
    extra: dict[str, object] = field(default_factory=dict)

    def bodies(self) -> list[bytes]:
        """The requests' bodies, the same for the same seed."""
        draw = random.Random(self.seed)
        fixed = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "min_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        prompts = [" ".join(draw.choice(WORDS) for _ in range(self.num_words)) for _ in range(self.num_requests)]
        return [json.dumps(fixed | {"prompt": prompt} | self.extra).encode() for prompt in prompts]


async def run(load: Load) -> tuple[list[Outcome], float]:
    """All outcomes, and the seconds that they took together."""
    limit = asyncio.Semaphore(load.concurrency)
    address = urlparse(load.url)

    async def one(body: bytes) -> Outcome:
        async with limit:
            return await _request(address.hostname or "127.0.0.1", address.port or 80, body)

    begun = time.perf_counter()
    outcomes = await asyncio.gather(*(one(body) for body in load.bodies()))
    return list(outcomes), time.perf_counter() - begun


async def _request(host: str, port: int, body: bytes) -> Outcome:
    outcome = Outcome()
    begun = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        outcome.error = str(error)
        return outcome
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    try:
        await _read_events(reader, outcome, begun)
    except OSError as error:
        outcome.error = str(error)
    writer.close()
    return outcome


async def _read_events(reader: asyncio.StreamReader, outcome: Outcome, begun: float) -> None:
    tail = b""
    last = begun
    status: bytes | None = None
    while chunk := await reader.read(65536):
        now = time.perf_counter()
        if status is None:
            status = chunk.split(b" ", 2)[1]
        num_events = chunk.count(b"data: ") - chunk.count(b"data: [DONE]")
        if num_events > 0:
            if outcome.ttft_s is None:
                outcome.ttft_s = now - begun
            else:
                outcome.gaps_s.append(now - last)
            last = now
            outcome.num_events += num_events
        tail = (tail + chunk)[-512:]
        if b"data: [DONE]" in tail:
            outcome.ok = status == b"200"
            return
    outcome.error = tail[-200:].decode(errors="replace")


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
