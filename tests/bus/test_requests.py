"""Questions on the bus, without one."""

import asyncio
import time

import pytest

from shared.bus.errors import NotConnected
from shared.bus.requests import LATE_S, Requests


async def test_an_answer_that_lay_in_the_socket_while_this_process_stood_still_counts() -> None:
    requests = Requests("_INBOX.x")
    replies: list[str] = []

    def publish(reply: str) -> bool:
        replies.append(reply)
        return True

    asking = asyncio.create_task(requests.ask(publish, "a", 0.01))
    await asyncio.sleep(0)
    time.sleep(0.02 + LATE_S)  # noqa: ASYNC251  # standing still is what is tested
    await asyncio.sleep(0)  # the loop runs its timers first, and reads then
    requests.on_answer(replies[0], "", b"answer", b"")
    assert await asking == b"answer"


async def test_what_was_not_sent_is_not_waited_for() -> None:
    with pytest.raises(NotConnected):
        await Requests("_INBOX.x").ask(lambda reply: False, "a", 60.0)
