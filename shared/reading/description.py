"""Asking the detokenizers what a request is: whether it exists, how many choices it has, how it is to be answered."""

import asyncio
import itertools

from shared import subjects
from shared.bus.client import Bus
from shared.bus.errors import NoResponders, NotConnected
from shared.errors import unavailable
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import Describe, Described
from shared.reading.hub import StreamHub

ATTEMPT_TIMEOUT_S = 0.5
RETRY_WAIT_S = 0.1

_decode = decoder(Described)


async def describe(
    bus: Bus,
    hub: StreamHub,
    shard: str,
    request_id: str,
    *,
    wait_s: float = 0.0,
    with_prompt: bool = False,
    horizon_s: float = 5.0,
) -> Described:
    """What the shard's log says of the request; with found=False only from a detokenizer that knew the log's end.

    wait_s: how long a detokenizer waits for a request that it does not know yet. Asked through the queue group; when no
    answer comes, straight to one heard of lately, since a stopped process stays in its queue group.
    Raises RequestError 503 when nobody has answered within horizon_s.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + horizon_s
    data = encode(Describe(request_id=request_id, wait_s=wait_s, with_prompt=with_prompt))
    subject = subjects.describe(shard)
    attempts = itertools.count()
    while True:
        try:
            described: Described = _decode(await bus.request(subject, data, ATTEMPT_TIMEOUT_S + wait_s))
            if described.found or described.forgotten or described.live:
                return described
            await asyncio.sleep(RETRY_WAIT_S)
        except (NoResponders, NotConnected):
            subject = subjects.describe(shard)
            await asyncio.sleep(RETRY_WAIT_S)
        except (TimeoutError, WireError):
            lately = hub.heard_lately(shard)
            number = next(attempts)
            subject = subjects.describe_direct(shard, lately[number % len(lately)]) if lately else subject
        if loop.time() >= until:
            raise unavailable("No detokenizer is there to tell of the request; try again later.")
