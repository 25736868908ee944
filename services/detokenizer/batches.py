"""Deltas on their way out: one numbered batch per turn and inbox, or one message each for plain clients."""

from collections.abc import Callable

import msgspec

from services.detokenizer.core.attachments import Attachment
from shared.messages.codec import encode
from shared.messages.pipeline import Delta, DeltaBatch

KEEP_NUMBER_S = 60.0
MAX_BATCH_BYTES = 256 * 1024


class Outgoing:
    """Numbers and sends. num_batches and num_deltas count for metrics; times are seconds, given by the caller."""

    def __init__(self, source: str, send: Callable[[str, bytes], object], num_choices: Callable[[str], int]) -> None:
        self._source = source
        self._send = send
        self._num_choices = num_choices
        self._numbers: dict[str, tuple[int, float]] = {}
        self.num_batches = 0
        self.num_deltas = 0

    def open(self, inbox: str, now: float) -> None:
        """An inbox reads in batches: it gets the heartbeat from now on."""
        self._numbers.setdefault(inbox, (0, now))

    def send(self, deltas: list[tuple[Attachment, Delta]], now: float) -> None:
        """Send these deltas, in order for each reader."""
        batches: dict[str, list[Delta]] = {}
        for attachment, delta in deltas:
            if attachment.attach.style == "batch":
                batches.setdefault(attachment.attach.inbox, []).append(delta)
            else:
                self._send_to_client(attachment, delta)
        for inbox, batch in batches.items():
            self._send_batch(inbox, batch, now)
        self.num_deltas += len(deltas)

    def _send_batch(self, inbox: str, deltas: list[Delta], now: float) -> None:
        """One message, or several where one would be large: whoever reads slowly must be able to stop in between."""
        number = self._numbers.get(inbox, (0, now))[0] + 1
        data = encode(DeltaBatch(source=self._source, number=number, deltas=deltas))
        if len(data) > MAX_BATCH_BYTES and len(deltas) > 1:
            half = len(deltas) // 2
            self._send_batch(inbox, deltas[:half], now)
            self._send_batch(inbox, deltas[half:], now)
            return
        self._numbers[inbox] = (number, now)
        self._send(inbox, data)
        self.num_batches += 1

    def _send_to_client(self, attachment: Attachment, delta: Delta) -> None:
        to_bytes = msgspec.json.encode if attachment.attach.style == "json" else encode
        num_choices = self._num_choices(attachment.attach.request_id)
        for message in attachment.formatter.messages(delta, num_choices):
            self._send(attachment.attach.inbox, to_bytes(message))

    def heartbeat(self, reading: set[str], now: float) -> None:
        """Repeat the last number to every inbox that reads, so that a lost last batch is noticed."""
        for inbox in reading:
            self.open(inbox, now)
        for inbox, (number, used) in list(self._numbers.items()):
            if inbox in reading:
                self._numbers[inbox] = (number, now)
                self._send(inbox, encode(DeltaBatch(source=self._source, number=number)))
            elif now - used > KEEP_NUMBER_S:
                del self._numbers[inbox]
