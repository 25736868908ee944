"""Questions and their answers: one inbox for all of a connection, whose last part says which question it was."""

import asyncio
from collections.abc import Callable

from shared.bus.errors import NoResponders, NotConnected

NO_RESPONDERS = b"NATS/1.0 503"


class Requests:
    """inbox: the subject above all replies; on_answer must hear `<inbox>.*`."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._last = 0

    async def ask(self, publish: Callable[[str], bool], what: str, timeout_s: float) -> bytes:
        """The first answer to what publish(reply) sends. what: for messages.

        Raises NoResponders at once if nobody listens, TimeoutError, and NotConnected where nothing was sent.
        """
        self._last += 1
        token = str(self._last)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[token] = answer
        late = loop.call_later(timeout_s, self._on_late, token, what, timeout_s)
        try:
            if not publish(f"{self.inbox}.{token}"):
                raise NotConnected("not connected")
            return await answer
        finally:
            late.cancel()
            del self._waiting[token]

    def _on_late(self, token: str, what: str, timeout_s: float) -> None:
        answer = self._waiting[token]
        if not answer.done():
            answer.set_exception(TimeoutError(f"no reply on {what} within {timeout_s} s"))

    def on_answer(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """A message to the inbox; one that nobody waits for any more is dropped."""
        answer = self._waiting.get(subject.rpartition(".")[2])
        if answer is None or answer.done():
            return
        if headers.startswith(NO_RESPONDERS) and not data:
            answer.set_exception(NoResponders())
        else:
            answer.set_result(data)
