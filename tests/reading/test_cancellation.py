"""A cancellation survives code that swallows it."""

import asyncio

import pytest

from shared.bus.cancellation import cancellation_kept


async def swallow() -> str:
    """As nats-py's flush does."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "swallowed"
    return ""


async def test_swallowed_cancellations_are_raised_again() -> None:
    async def task() -> None:
        with cancellation_kept():
            await swallow()

    running = asyncio.create_task(task())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_clean_up_after_a_cancellation_may_await() -> None:
    async def task() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with cancellation_kept():
                await asyncio.sleep(0)
            return "cleaned up"
        return ""

    running = asyncio.create_task(task())
    await asyncio.sleep(0)
    running.cancel()
    assert await running == "cleaned up"


async def test_a_timeout_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            with cancellation_kept():
                await swallow()
