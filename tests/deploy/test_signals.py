"""Signals of `tokenbus up`: one asks for a drain, a later one does not wait for it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from deploy.cli import running
from shared.stop_signals import SAME_STOP_S
from tests.waiting import LIMIT_S, until


class Hurried:
    """Stands for a node."""

    num_hurries = 0

    def hurry(self) -> None:
        self.num_hurries += 1


@pytest.fixture
async def node() -> AsyncIterator[Hurried]:
    node = Hurried()
    stopping = asyncio.Event()
    running._handle_signals(stopping, node)  # type: ignore[arg-type]
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stopping.wait(), LIMIT_S)
    yield node
    for number in running.STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_signal_that_comes_twice_still_drains(node: Hurried) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(SAME_STOP_S / 3)
    assert node.num_hurries == 0


async def test_a_later_signal_ends_the_drain(node: Hurried) -> None:
    await asyncio.sleep(SAME_STOP_S * 1.2)
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: node.num_hurries == 1)
