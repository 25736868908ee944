"""Clients that never pause: what a node is told to do must not fail one of their streams."""

import asyncio
from typing import Any

from tests.e2e.streams import Answer, connect, stream
from tests.waiting import until

REFUSED_WAIT_S = 0.2


class Clients:
    """Each asks again as soon as its answer has ended, over a connection that is kept, until the context ends.

    answers: those that have ended, whole or not. refusals_count: whether a request that was refused with 503 before it
    began is one of them; else the client asks again after a moment. That is for nodes with one process of a service,
    which cannot take new requests while it starts again.
    """

    def __init__(self, url: str, num_clients: int, body: dict[str, Any], *, refusals_count: bool = True) -> None:
        self.answers: list[Answer] = []
        self._refusals_count = refusals_count
        self._reading: list[Answer] = [Answer() for _ in range(num_clients)]
        self._url = url
        self._body = body
        self._num_answers = [0] * num_clients
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Clients":
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(len(self._num_answers))]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    @property
    def failures(self) -> list[str]:
        """What went wrong."""
        return [answer.error or "not whole" for answer in self.answers if not answer.whole]

    async def all_running(self, num_tokens: int = 10) -> None:
        """Return once each has read some tokens of an answer that has not ended."""
        await until(
            lambda: all(len(answer.token_ids) >= num_tokens for answer in self._reading) or self.failures,
            "all streams running",
        )
        assert not self.failures, self.failures

    async def all_answered(self) -> None:
        """Return when each has asked and been answered since this call."""
        wanted = [number + 2 for number in self._num_answers]  # the one under way was asked before
        await until(
            lambda: all(number >= least for number, least in zip(self._num_answers, wanted, strict=True)),
            "an answer for each client",
        )

    async def _ask(self, number: int) -> None:
        async with connect(self._url) as client:
            while not self._over.is_set():
                answer = self._reading[number] = Answer()
                await stream(client, "/v1/completions", self._body, answer)
                if not self._refusals_count and not answer.id and '"service_unavailable_error"' in answer.error:
                    await asyncio.sleep(REFUSED_WAIT_S)
                    continue
                self.answers.append(answer)
                self._num_answers[number] += 1
