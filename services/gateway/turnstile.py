"""Lets a burst of requests in a few at a time, so that the loop goes on with everything else in between.

Thousands of requests that arrive together would otherwise all be prepared in one turn of the event loop: for a second
or more no heartbeat would leave, and the leader would take this gateway, and all that its clients read, for dead.
"""

import asyncio
from collections import deque

MAX_PER_TURN = 32


class Turnstile:
    """MAX_PER_TURN enter at once, all others in order in the next turns."""

    def __init__(self) -> None:
        self._num_entered = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Return when it is this caller's turn."""
        loop = asyncio.get_running_loop()
        if self._num_entered == 0:
            loop.call_soon(self._next_turn)
        if self._num_entered < MAX_PER_TURN and not self._waiting:
            self._num_entered += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._num_entered = 0
        while self._waiting and self._num_entered < MAX_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # its client may have gone
                turn.set_result(None)
                self._num_entered += 1
        if self._num_entered:
            asyncio.get_running_loop().call_soon(self._next_turn)
