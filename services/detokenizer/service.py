"""The detokenizer's process: folds the log and sends text to whoever is attached.

Any detokenizer serves any request; what it knows is the fold, what a reader has is the reader's own position.
"""

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

from services.detokenizer.batches import Outgoing
from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.core.descriptions import Answer, Descriptions
from services.detokenizer.core.desk import Desk
from services.detokenizer.metrics import DetokenizerMetrics
from services.detokenizer.vocabularies import Vocabularies
from shared import subjects
from shared.bus.appender import BackgroundAppender
from shared.bus.nats_log import NatsLog
from shared.bus.receiver import Receiver
from shared.log.fold import Change, Fold
from shared.messages.codec import encode
from shared.messages.control import Attach, Attached, Describe, Detach, DetokenizerHeartbeat
from shared.messages.pipeline import Done, Request
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository
from shared.service import Health, ServiceHost, StartError

HEARTBEAT_S = 0.25
LATE_S = 0.5
LEAVE_S = 1.0
LEAVE_POLL_S = 0.02
PRUNE_EVERY = 40
MAX_CHOICES = 256


class DetokenizerService:
    """One detokenizer."""

    def __init__(self, host: ServiceHost, config: DetokenizerConfig, log: NatsLog) -> None:
        self._host = host
        self._config = config
        self._loop = asyncio.get_running_loop()
        self.fold = Fold(fencing=config.fencing)
        root = Path(config.model_repository) if config.model_repository else None
        self._vocabularies = Vocabularies(ModelRepository(root), self._on_vocabulary, host.log)
        self.desk = Desk(self.fold, self._vocabularies.of)
        self._descriptions = Descriptions(self.fold, host.name)
        self.outgoing = Outgoing(host.name, self._send, self._num_choices)
        self._tail = log.tail(self.fold, self._on_change, self._on_reload)
        self._appender = BackgroundAppender(log, host.log)
        self._receiver = Receiver(host.bus, host.log)
        self._metrics = DetokenizerMetrics(self)
        self._ticked_at = self._loop.time()

    @property
    def tail_live(self) -> bool:
        """Whether this process knows the end of the log."""
        return self._tail.live

    @property
    def num_tail_resets(self) -> int:
        """Times that the log's tail was started, the first among them."""
        return self._tail.resets

    async def run(self) -> None:
        """Serve until told to stop, and then until the readers have attached elsewhere."""
        shard = self._config.shard
        try:
            await self._vocabularies.preload(self._config.model)
        except ModelError as error:
            raise StartError(str(error)) from error
        await self._host.unless_stopping(self._tail.start())
        name, queue = self._host.name, subjects.DETOKENIZER_QUEUE
        await self._receiver.on(subjects.detach(shard), Detach, self._on_detach)
        intakes = [
            await self._receiver.on(subjects.attach(shard), Attach, self._on_attach, queue),
            await self._receiver.on(subjects.attach_direct(shard, name), Attach, self._on_attach),
            await self._receiver.on(subjects.describe(shard), Describe, self._on_describe, queue),
            await self._receiver.on(subjects.describe_direct(shard, name), Describe, self._on_describe),
        ]
        self._host.health = self._health
        ticks = 0
        while not self._host.stopping.is_set():
            self._tick(prune=ticks % PRUNE_EVERY == 0)
            ticks += 1
            try:
                await asyncio.wait_for(self._host.stopping.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue
        for intake in intakes:
            await intake.unsubscribe()
        await self._leave()
        await self._appender.drain()
        await self._tail.stop()
        await self._vocabularies.close()

    async def _leave(self) -> None:
        """Tell the readers, and serve on until they are gone. Plain clients hear no heartbeats: after a silence they
        attach again, now as later. Where no other detokenizer is, the others stay, and do the same when time is up."""
        until = self._loop.time() + LEAVE_S
        tick_at = 0.0
        while (now := self._loop.time()) < until and not self._host.hurrying.is_set():
            if now >= tick_at:
                self._tick(prune=False)
                tick_at = now + HEARTBEAT_S
            if not self.desk.attachments.batch_inboxes():
                return
            await asyncio.sleep(LEAVE_POLL_S)

    def _health(self) -> Health:
        details: dict[str, object] = {
            "models": self._vocabularies.names,
            "readers": len(self.desk.attachments),
            "log": {"live": self._tail.live, "folded": self.fold.seq},
        }
        return Health(self._tail.live, details, [] if self._tail.live else ["log"])

    def _tick(self, *, prune: bool) -> None:
        now = self._loop.time()
        late, self._ticked_at = now - self._ticked_at > HEARTBEAT_S + LATE_S, now
        live = self._tail.live and not late  # what came while this process stood still is not folded yet
        self.desk.tick(now, live=live)
        if prune:
            self.desk.forget_retired()
        self._flush()
        self._answer(self._descriptions.tick(now, live=live))
        self.outgoing.heartbeat(self.desk.attachments.batch_inboxes(), now)
        message = DetokenizerHeartbeat(
            detokenizer=self._host.name, folded=self.fold.seq, leaving=self._host.stopping.is_set()
        )
        self._host.bus.publish(subjects.detokenizer_heartbeat(self._config.shard), encode(message))

    # ---- what the log says ------------------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        if isinstance(change.record, Done) and change.counted:
            self._log_done(change.record)
        elif isinstance(change.record, Request):
            self._answer(self._descriptions.on_request(change.record.request_id))
        if change.sequences:
            self.desk.changed(change.sequences, self._loop.time())
            self._flush()

    def _log_done(self, done: Done) -> None:
        request = self.fold.requests[done.request_id].request
        self._host.log.debug("done", request_id=done.request_id, reasons=done.reasons, traceparent=request.traceparent)

    def _on_reload(self) -> None:
        self._host.log.info("loaded a snapshot", folded=self.fold.seq)
        self.desk.reloaded(self._loop.time())
        self._flush()

    def _on_vocabulary(self) -> None:
        self.desk.changed(list(self.fold.sequences.values()), self._loop.time())
        self._flush()

    # ---- what readers say -------------------------------------------------------------------------------------------

    def _on_attach(self, attach: Attach, reply: str) -> None:
        if (
            not subjects.is_inbox(attach.inbox)
            or len(attach.positions) > MAX_CHOICES
            or min(attach.positions, default=0) < 0
        ):
            self._host.log.warning("attach refused", inbox=attach.inbox[:80], num_positions=len(attach.positions))
            return
        now = self._loop.time()
        if reply and subjects.is_inbox(reply):
            self._host.bus.publish(reply, encode(Attached(detokenizer=self._host.name)))
        if attach.style == "batch":
            self.outgoing.open(attach.inbox, now)
        self.desk.attach(attach, now)
        self._flush()

    def _on_detach(self, detach: Detach, reply: str) -> None:
        self.desk.detach(detach, self._loop.time())

    def _on_describe(self, describe: Describe, reply: str) -> None:
        if subjects.is_inbox(reply):
            self._answer(self._descriptions.on_describe(describe, reply, self._loop.time(), live=self._tail.live))

    # ---- what goes out ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        outbox = self.desk.take_outbox()
        if outbox.deltas:
            self.outgoing.send(outbox.deltas, self._loop.time())
        for record, message_id in outbox.records:
            self._appender.append([(record, message_id)])

    def _answer(self, answers: Iterable[Answer]) -> None:
        for reply, described in answers:
            self._host.bus.publish(reply, encode(described))

    def _send(self, subject: str, data: bytes) -> None:
        if self._config.test_drop_deltas and random.random() < self._config.test_drop_deltas:
            return
        self._host.bus.publish(subject, data)

    def _num_choices(self, request_id: str) -> int:
        state = self.fold.requests.get(request_id)
        return len(state.sequences) if state is not None else 1


async def serve(host: ServiceHost, config: DetokenizerConfig) -> None:
    """Run one detokenizer."""
    log = await host.unless_stopping(NatsLog.find(host.bus, config.shard))
    if log is not None:
        await DetokenizerService(host, config, log).run()
