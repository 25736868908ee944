"""Subscriptions that decode, and survive whatever bytes come."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from structlog.typing import FilteringBoundLogger

from shared.bus.client import Bus, Subscription
from shared.messages.codec import WireError, decoder

LOG_INTERVAL_S = 1.0


class Receiver:
    """Decodes messages of one kind per subject; malformed ones are dropped, counted, and logged once a second.

    num_malformed: by subject, for metrics.
    """

    def __init__(self, bus: Bus, logger: FilteringBoundLogger) -> None:
        self._bus = bus
        self._logger = logger
        self.num_malformed: Counter[str] = Counter()
        self._logged = float("-inf")

    async def on(self, subject: str, kind: Any, handler: Callable[[Any, str], None], queue: str = "") -> Subscription:
        """Call handler(message, reply) for each message of this kind (a Struct or a union of tagged ones)."""
        decode = decoder(kind)

        def receive(subject_: str, reply: str, data: bytes, headers: bytes) -> None:
            try:
                message = decode(data)
            except WireError as error:
                self._drop(subject_, len(data), error)
                return
            handler(message, reply)

        return await self._bus.subscribe(subject, receive, queue)

    def _drop(self, subject: str, num_bytes: int, error: WireError) -> None:
        self.num_malformed[subject] += 1
        now = time.monotonic()
        if now - self._logged >= LOG_INTERVAL_S:
            self._logged = now
            total = sum(self.num_malformed.values())
            self._logger.warning("malformed message", subject=subject, bytes=num_bytes, error=str(error), total=total)
