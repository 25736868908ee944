"""A worker's frames on their way into the log: published at once, and again until their acknowledgements are here."""

import asyncio
import random
import time
from collections.abc import Callable

import msgspec
from structlog.typing import FilteringBoundLogger

from services.worker.core.frame_window import Frame, FrameWindow
from services.worker.metrics import WorkerMetrics
from shared.bus.client import Bus
from shared.log.port import Log


class _PubAck(msgspec.Struct):
    """JetStream's answer to a publish; error holds code and description when nothing was stored."""

    seq: int = 0
    error: dict[str, object] | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


class FrameSender:
    """Sends what its window says is to be sent. inbox: where acknowledgements come, `<inbox>.<epoch>.<step>`.

    on_stored: called after each acknowledgement that was taken, since there may be room for another frame.
    on_malformed: called with the reason for each one that cannot be read. drop_share: a test switch, the share of
    frames that are not sent.
    """

    def __init__(
        self,
        bus: Bus,
        log: Log,
        metrics: WorkerMetrics,
        logger: FilteringBoundLogger,
        on_stored: Callable[[], None],
        on_malformed: Callable[[str], None],
        drop_share: float,
    ) -> None:
        self.window = FrameWindow()
        self.inbox = ""
        self._bus = bus
        self._log = log
        self._metrics = metrics
        self._logger = logger
        self._on_stored = on_stored
        self._on_malformed = on_malformed
        self._drop_share = drop_share
        self._loop = asyncio.get_running_loop()
        self._computed_s: dict[int, float] = {}

    async def start(self) -> None:
        """Listen for acknowledgements."""
        self.inbox = self._bus.new_inbox()
        await self._bus.subscribe(f"{self.inbox}.*.*", self.on_acknowledgement)

    def send(self, step: int, data: bytes, computed_s: float) -> None:
        """A new frame of the window's epoch, one step after the last. computed_s: end of its step, by perf_counter."""
        if not self.window.num_outstanding:
            self._computed_s.clear()  # left by an older epoch
        self._computed_s[step] = computed_s
        self.window.add(step, data, self._loop.time())
        self._publish(step, data)
        self._metrics.num_frames_outstanding = self.window.num_outstanding

    def send_overdue(self) -> None:
        """Several times a second: what no acknowledgement came for."""
        self._publish_again(self.window.take_overdue(self._loop.time()))

    def send_all(self) -> None:
        """Whatever is outstanding may be lost."""
        self._publish_again(self.window.take_all(self._loop.time()))

    def on_acknowledgement(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """PubAck of one copy of a frame; without data it is NATS saying that no stream listens."""
        _, epoch_token, step_token = subject.rsplit(".", 2)
        if not data:
            self._on_refused("no stream takes the log's records")
            return
        try:
            ack = _decode_ack(data)
            epoch, step = int(epoch_token), int(step_token)
        except ValueError as error:
            self._on_malformed(str(error))
            return
        if ack.error is not None or ack.seq <= 0:
            self._on_refused(str((ack.error or {}).get("description", "refused")))
            return
        if epoch == self.window.epoch and step in self._computed_s:
            self._metrics.frame_seconds.observe(time.perf_counter() - self._computed_s.pop(step))
        self.window.on_stored(epoch, step, ack.seq, self._loop.time())
        self._metrics.num_frames_outstanding = self.window.num_outstanding
        self._on_stored()

    def _on_refused(self, reason: str) -> None:
        if self.window.refusal is None:
            self._logger.warning("the log refuses frames; they are kept", reason=reason)
        self.window.on_refused(reason)

    def _publish(self, step: int, data: bytes) -> None:
        if self._drop_share and random.random() < self._drop_share:
            return
        self._log.append_frame(data, f"{self.inbox}.{self.window.epoch}.{step}")

    def _publish_again(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._publish(frame.step, frame.data)
        self._metrics.num_frames_resent += len(frames)
