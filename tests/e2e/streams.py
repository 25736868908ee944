"""Many streaming clients at once, each keeping all that it read."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.waiting import LIMIT_S, until


@dataclass(slots=True)
class Answer:
    """One stream as its client read it. whole: it ended with [DONE] and no error."""

    id: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    whole: bool = False
    error: str = ""
    arrivals_s: list[float] = field(default_factory=list)


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any], answer: Answer | None = None) -> Answer:
    """POST with stream=true and read to the end. answer: filled as it is read, for those who watch."""
    answer = answer or Answer()
    loop = asyncio.get_running_loop()
    try:
        async with client.stream("POST", path, json={**body, "stream": True, "return_token_ids": True}) as response:
            if response.status_code != 200:
                answer.error = (await response.aread()).decode()
                return answer
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    answer.whole = not answer.error
                    break
                _take(answer, json.loads(line[6:]), loop.time())
    except httpx.HTTPError as error:
        answer.error = repr(error)
    return answer


def _take(answer: Answer, event: dict[str, Any], now_s: float) -> None:
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    answer.id = event["id"]
    answer.usage = event.get("usage") or answer.usage
    for choice in event["choices"]:
        answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        answer.token_ids += choice.get("token_ids") or []
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        answer.arrivals_s.append(now_s)


def connect(url: str) -> httpx.AsyncClient:
    """A client for many streams at once."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False)


async def many(url: str, path: str, bodies: list[dict[str, Any]]) -> list[Answer]:
    """All of them at once."""
    async with connect(url) as client:
        return list(await asyncio.gather(*(stream(client, path, body) for body in bodies)))


async def all_running(
    client: httpx.AsyncClient, path: str, bodies: list[dict[str, Any]], num_tokens: int = 10
) -> list[asyncio.Task[Answer]]:
    """Start all of them, and return once each has read some tokens and none has ended."""
    answers = [Answer() for _ in bodies]
    tasks = [
        asyncio.create_task(stream(client, path, body, answer)) for body, answer in zip(bodies, answers, strict=True)
    ]
    await until(
        lambda: all(len(answer.token_ids) >= num_tokens for answer in answers) or any(task.done() for task in tasks),
        "all streams running",
    )
    assert not any(task.done() for task in tasks), "a stream ended before the others ran"
    return tasks
