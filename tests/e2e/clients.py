"""Clients that never pause: what a node is told to do must not fail one of their streams."""

import asyncio
from typing import Any

from tests.e2e.streams import Answer, connect, stream
from tests.waiting import until


class Clients:
    """Each asks again as soon as its answer has ended, over a connection that is kept, until the context ends.

    answers: those that have ended, whole or not.
    """

    def __init__(self, url: str, num_clients: int, body: dict[str, Any]) -> None:
        self.answers: list[Answer] = []
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
                self.answers.append(await stream(client, "/v1/completions", self._body))
                self._num_answers[number] += 1
