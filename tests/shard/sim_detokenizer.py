"""A detokenizer of a simulated shard: the real desk in a shell of a few lines."""

from typing import TYPE_CHECKING

from services.detokenizer.batches import Outgoing
from services.detokenizer.core.desk import Desk
from shared.log.fold import Change
from shared.messages.control import Attach, Detach
from tests.detokenizer.bytes_tokenizer import bytes_vocabulary
from tests.shard.folder import Folder

if TYPE_CHECKING:
    from tests.shard.shard import Shard

HEARTBEAT_S = 0.25
VOCABULARY = bytes_vocabulary()


class SimDetokenizer(Folder):
    """One detokenizer. See services.detokenizer.service."""

    def __init__(self, shard: "Shard", name: str) -> None:
        super().__init__(shard.world, name, shard.log, fencing=shard.scenario.fencing)
        self.shard = shard
        self.desk = Desk(self.fold, lambda request: VOCABULARY)
        self.outgoing = Outgoing(name, self._send, lambda request_id: 1)
        self.catch_up()
        self.every(HEARTBEAT_S, self._tick)

    def _tick(self) -> None:
        self.desk.tick(self.world.now, live=self.tail_live)
        self.desk.forget_retired()
        self._flush()
        self.outgoing.heartbeat(self.desk.attachments.batch_inboxes(), self.world.now)
        folded = self.fold.seq
        for scheduler in self.shard.schedulers:
            self.world.send(self, scheduler, scheduler.on_detokenizer, self.name, folded)
        for gateway in self.shard.gateways:
            self.world.send(self, gateway, gateway.on_detokenizer, self.name)

    # ---- what the log says ------------------------------------------------------------------------------------------

    def on_reload(self) -> None:
        """See Folder."""
        self.desk.reloaded(self.world.now)
        self._flush()

    def on_change(self, change: Change) -> None:
        """See Folder."""
        if change.sequences:
            self.desk.changed(change.sequences, self.world.now)
            self._flush()

    # ---- readers ----------------------------------------------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """A reader comes."""
        gateway = self.shard.gateway_at(attach.inbox)
        if gateway is not None:
            self.world.send(self, gateway, gateway.on_attached, attach.number, self.name)
        self.outgoing.open(attach.inbox, self.world.now)
        self.desk.attach(attach, self.world.now)
        self._flush()

    def on_detach(self, detach: Detach) -> None:
        """A reader goes."""
        self.desk.detach(detach, self.world.now)

    def _flush(self) -> None:
        outbox = self.desk.take_outbox()
        if outbox.deltas:
            self.outgoing.send(outbox.deltas, self.world.now)
        for record in outbox.records:
            self.append([record])

    def _send(self, inbox: str, data: bytes) -> None:
        gateway = self.shard.gateway_at(inbox)
        if gateway is not None:
            self.world.send(self, gateway, gateway.on_batch, data)
