"""A burst of requests leaves the event loop room for everything else."""

import asyncio

from services.gateway.turnstile import MAX_PER_TURN, Turnstile
from tests.waiting import LIMIT_S


async def test_a_burst_is_let_in_in_order_and_a_few_at_a_time() -> None:
    turnstile, entered = Turnstile(), list[int]()

    async def one(number: int) -> None:
        await turnstile.enter()
        entered.append(number)

    burst = [asyncio.create_task(one(number)) for number in range(10 * MAX_PER_TURN)]
    gone = burst.pop(2 * MAX_PER_TURN)
    num_turns, before = 0, 0
    while len(entered) < len(burst):
        await asyncio.sleep(0)
        num_turns += 1
        assert len(entered) - before <= 2 * MAX_PER_TURN
        before = len(entered)
        gone.cancel()
    assert entered == sorted(entered) and len(entered) == 10 * MAX_PER_TURN - 1 and num_turns >= 5
    await asyncio.gather(*burst)
    await asyncio.wait_for(turnstile.enter(), LIMIT_S)
