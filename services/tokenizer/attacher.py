"""Attaching native clients to their text: whoever serves it, exactly one detokenizer does."""

import asyncio
import time

from services.tokenizer.metrics import TokenizerMetrics
from shared import subjects
from shared.bus.client import Bus
from shared.bus.errors import NoResponders, NotConnected
from shared.errors import unavailable
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import Attach, Attached, Detach, DetokenizerHeartbeat
from shared.messages.pipeline import Refused

ATTEMPT_TIMEOUT_S = 1.0
RETRY_WAIT_S = 0.1
HORIZON_S = 15.0
HEARD_LATELY_S = 1.0

_decode_attached = decoder(Attached)


class Attacher:
    """Asks the shard's detokenizers until one answers (protocol rule 15)."""

    def __init__(self, bus: Bus, shard: str, metrics: TokenizerMetrics) -> None:
        self._bus = bus
        self._shard = shard
        self._metrics = metrics
        self._heard: dict[str, float] = {}
        self._newest_number = 0

    def on_heartbeat(self, heartbeat: DetokenizerHeartbeat, reply: str) -> None:
        """Remember who is alive and stays so."""
        now = asyncio.get_running_loop().time()
        if heartbeat.leaving:
            self._heard.pop(heartbeat.detokenizer, None)
        else:
            self._heard[heartbeat.detokenizer] = now
        if len(self._heard) > 1:
            self._heard = {name: at for name, at in self._heard.items() if now - at < HEARD_LATELY_S}

    async def attach(self, request_id: str, inbox: str, style: str, positions: tuple[int, ...] = ()) -> Refused | None:
        """Have the text from these positions on sent to inbox. Returns an error for the client after HORIZON_S.

        Each attempt ends all older attachments of the inbox to the request, wherever they are: those of a client that
        asks twice, and those of an attempt without an answer, which may have reached a stopped process that wakes up
        later. The next attempt then goes straight to a detokenizer heard of lately.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + HORIZON_S
        subject = subjects.attach(self._shard)
        while loop.time() < until:
            attach = Attach(
                request_id=request_id,
                inbox=inbox,
                number=self._next_number(),
                positions=positions,
                style="json" if style == "json" else "msgpack",
            )
            self._end(request_id, inbox, attach.number - 1)
            try:
                _decode_attached(await self._bus.request(subject, encode(attach), ATTEMPT_TIMEOUT_S))
                self._metrics.attaches.inc()
                return None
            except (NoResponders, NotConnected):
                subject = subjects.attach(self._shard)
                await asyncio.sleep(RETRY_WAIT_S)
            except (TimeoutError, WireError):
                subject = self._direct_subject()
        self._end(request_id, inbox, self._next_number())
        return unavailable("No detokenizer is there to send the text; attach again later.").refused()

    def _end(self, request_id: str, inbox: str, number: int) -> None:
        """Nobody reads the attachments up to this number any more."""
        detach = Detach(request_id=request_id, number=number, inbox=inbox)
        self._bus.publish(subjects.detach(self._shard), encode(detach))

    def _direct_subject(self) -> str:
        if not self._heard:
            return subjects.attach(self._shard)
        return subjects.attach_direct(self._shard, max(self._heard, key=self._heard.__getitem__))

    def _next_number(self) -> int:
        """Larger than any number that this or another tokenizer gave out before: the newest attachment stands."""
        self._newest_number = max(self._newest_number + 1, time.time_ns())
        return self._newest_number
