"""Ends a process whose event loop stands still.

A native call that keeps the GIL stops every Python thread: no heartbeat, no signal handler, no line of log. The leader
fences such a worker after a second of silence, but its node sees a living process. Only a thread that needs no GIL can
end it, and faulthandler has one: it writes where each thread stands to stderr and exits with status 1, unless it is
armed again in time.

The engine's steps give the GIL back while they compute, however long they take, so no honest step comes near the
limit. A process that was stopped (SIGSTOP) for longer than the limit may end when it goes on; by then it was fenced.
"""

import asyncio
import faulthandler

MAX_REARM_S = 1.0


async def keep_watch(limit_s: float) -> None:
    """Until cancelled, end the process whenever the event loop does not turn for limit_s seconds; 0: never."""
    if not limit_s:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s, exit=True)
            await asyncio.sleep(min(MAX_REARM_S, limit_s / 3))
    finally:
        faulthandler.cancel_dump_traceback_later()
