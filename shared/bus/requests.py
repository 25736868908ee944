"""Questions and their answers: one inbox for all of a connection, whose last part says which question it was."""

import asyncio
from collections.abc import Callable

from shared.bus.errors import NoResponders, NotConnected

NO_RESPONDERS = b"NATS/1.0 503"
LATE_S = 0.05
LATE_WAIT_S = 0.1


class _Question:
    """Waits for its answer for timeout_s seconds. A process that stood still is late itself, with the answer perhaps in
    its socket: then a moment longer."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[bytes] = self._loop.create_future()
        self._what = what
        self._timeout_s = timeout_s
        self._due = self._loop.time() + timeout_s
        self._timer = self._loop.call_later(timeout_s, self._on_due)

    def _on_due(self) -> None:
        if self._loop.time() - self._due > LATE_S:
            self._timer = self._loop.call_later(LATE_WAIT_S, self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(TimeoutError(f"no reply on {self._what} within {self._timeout_s} s"))

    def close(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()


class Requests:
    """inbox: the subject above all replies; on_answer must hear `<inbox>.*`."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self._waiting: dict[str, _Question] = {}
        self._last = 0

    async def ask(self, publish: Callable[[str], bool], what: str, timeout_s: float) -> bytes:
        """The first answer to what publish(reply) sends. what: for messages.

        Raises NoResponders at once if nobody listens, TimeoutError, and NotConnected where nothing was sent.
        """
        self._last += 1
        token = str(self._last)
        question = self._waiting[token] = _Question(what, timeout_s)
        try:
            if not publish(f"{self.inbox}.{token}"):
                raise NotConnected("not connected")
            return await question.answer
        finally:
            question.close()
            del self._waiting[token]

    def on_answer(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """A message to the inbox; one that nobody waits for any more is dropped."""
        question = self._waiting.get(subject.rpartition(".")[2])
        if question is None or question.answer.done():
            return
        if headers.startswith(NO_RESPONDERS) and not data:
            question.answer.set_exception(NoResponders())
        else:
            question.answer.set_result(data)
