"""A gateway of a simulated shard with its clients: the real rules of attaching, owning and keeping requests."""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.gateway.core.readership import Notice, Readership
from shared.messages.codec import decoder, encode
from shared.messages.control import Attach, Detach, GatewayHeartbeat
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta, DeltaBatch, End, EndReason, Reader, Request
from shared.reading.attachments import Attachments, SendAttach
from shared.reading.stream import Stream
from tests.shard.folder import Storing

if TYPE_CHECKING:
    from tests.shard.shard import Shard

TICK_S = 0.1
HEARTBEAT_S = 0.25
LATE_S = 1.0
TELL_ONCE_MORE_S = 3.0
TELL_EVERY_S = 15.0
EARLY_ATTACH_S = 3.0
SHARD = "s0"

_decode_batch = decoder(DeltaBatch)


class Client:
    """One client's request, and what it has read of it by choice, over however many connections.

    request.owner and keep_s say what becomes of it without the client. gateway: where it is connected now.
    accepted: whether it was told that the request is stored.
    """

    def __init__(self, request: Request) -> None:
        num_choices = request.sampling.n
        self.request = request
        self.token_ids: list[array[int]] = [array("i") for _ in range(num_choices)]
        self.texts = [""] * num_choices
        self.ends: list[EndReason | None] = [None] * num_choices
        self.gateway: SimGateway | None = None
        self.accepted = False

    @property
    def request_id(self) -> str:
        """Id of its request."""
        return self.request.request_id

    @property
    def is_kept(self) -> bool:
        """Whether the request goes on for a while without it."""
        return self.request.keep_s > 0

    @property
    def has_all(self) -> bool:
        """Whether it has read the end of every choice."""
        return all(end is not None for end in self.ends)

    def on_delta(self, delta: Delta, now: float) -> None:
        """The next piece of text."""
        choice = delta.choice
        assert self.ends[choice] is None, "text after the end"
        assert len(self.token_ids[choice]) == delta.start, "text that does not follow"
        self.token_ids[choice].extend(unpack_tokens(delta.token_ids))
        self.texts[choice] += delta.text
        self.ends[choice] = delta.end
        assert len(self.token_ids[choice]) == delta.stop


@dataclass(slots=True)
class Connection:
    """A client's connection to one gateway. has_joined: whether it counts as a reader of a kept request there."""

    client: Client
    stream: Stream
    has_joined: bool = False


class SimGateway(Storing):
    """One gateway. See services.gateway and shared.reading.hub."""

    def __init__(self, shard: "Shard", name: str) -> None:
        super().__init__(shard.world, name, shard.log)
        self.shard = shard
        self.inbox = f"_INBOX.{name}"
        self.attachments = Attachments(self.world.random.getrandbits(32))
        self.connections: dict[str, Connection] = {}
        self._readership = Readership()
        self._num_notices = 0
        self._beat_at = self.world.now
        self._tell_again_at = self.world.now + TELL_EVERY_S
        self.every(TICK_S, self._tick)
        self.every(HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        """See services.gateway.presence."""
        now = self.world.now
        if now - self._beat_at > HEARTBEAT_S + LATE_S:
            self._tell_again()
        self._beat_at = now
        heartbeat = GatewayHeartbeat(gateway=self.name)
        for scheduler in self.shard.schedulers:
            self.world.send(self, scheduler, scheduler.on_gateway, heartbeat)
        if now >= self._tell_again_at:
            self._tell_again_at = now + TELL_EVERY_S
            self._readership.tell_again()
        self._readership.forget_left(now)
        self._tell()

    def _tell_again(self) -> None:
        self._tell_again_at = self.world.now + TELL_ONCE_MORE_S
        self._readership.tell_again()
        self._tell()

    def _tell(self) -> None:
        for notice in self._readership.take_due():
            self._num_notices += 1
            record = Reader(request_id=notice.request_id, gateway=self.name, reads=notice.reads)
            message_id = f"reader-{notice.request_id}-{self.name}-{self._num_notices}"
            self.store("end", encode(record), message_id, lambda notice=notice: self._on_told(notice))  # type: ignore[misc]

    def _on_told(self, notice: Notice) -> None:
        self._readership.on_told(notice)
        self._tell()

    def _tick(self) -> None:
        self.attachments.tick(self.world.now)
        self._send()

    def on_reconnected(self) -> None:
        """See Process."""
        self._tell_again()
        self.attachments.attach_all_again(self.world.now)
        self._send()

    # ---- clients ----------------------------------------------------------------------------------------------------

    def connect(self, client: Client) -> None:
        """A client asks, or comes back for more. It attaches at once, but not for long before it is accepted."""
        client.gateway = self
        request = client.request
        stream = Stream(request.request_id, SHARD, request.sampling.n, client.on_delta, map(len, client.token_ids))
        stream.ended = [end is not None for end in client.ends]
        connection = self.connections[client.request_id] = Connection(client, stream)
        if client.accepted:
            self._on_accepted(connection)
            return
        self.store("req", encode(request), f"req-{client.request_id}", lambda: self._on_accepted(connection))
        self._attach(stream)
        self.world.after(EARLY_ATTACH_S, self.deliver, self._too_early, connection)

    def _too_early(self, connection: Connection) -> None:
        if not connection.client.accepted:
            self.attachments.detach(connection.stream)
            self._send()

    def _on_accepted(self, connection: Connection) -> None:
        client, stream = connection.client, connection.stream
        client.accepted = True
        if self.connections.get(client.request_id) is not connection:
            return
        if client.is_kept:
            connection.has_joined = True
            self._readership.join(client.request_id, SHARD, is_owner=client.request.owner == self.name)
            self._tell()
        if not stream.number:
            self._attach(stream)

    def _attach(self, stream: Stream) -> None:
        self.attachments.attach(stream, self.world.now)
        self._send()

    def disconnect(self, client: Client) -> None:
        """A client's connection is closed: its request ends, or is kept for its return if it was accepted."""
        connection = self.connections.pop(client.request_id)
        client.gateway = None
        self.attachments.detach(connection.stream)
        self._send()
        if connection.has_joined:
            self._leave(client, is_done=False)
        else:
            self.append([(End(request_id=client.request_id, reason="cancel"), f"cancel-{client.request_id}")])

    def _leave(self, client: Client, *, is_done: bool) -> None:
        self._readership.leave(client.request_id, self.world.now, is_done=is_done)
        self._tell()

    # ---- text -------------------------------------------------------------------------------------------------------

    def on_attached(self, number: int, detokenizer: str) -> None:
        """A detokenizer serves an attachment."""
        self.attachments.on_attached(number, detokenizer, self.world.now)

    def on_detokenizer(self, detokenizer: str) -> None:
        """A detokenizer's heartbeat."""
        self.attachments.on_detokenizer(SHARD, detokenizer, self.world.now)

    def on_batch(self, data: bytes) -> None:
        """Deltas, or the heartbeat of the inbox."""
        for stream, delta in self.attachments.on_batch(_decode_batch(data), self.world.now):
            stream.on_delta(delta, self.world.now)
            if stream.is_done:
                self._on_done(stream)
        self._send()

    def _on_done(self, stream: Stream) -> None:
        connection = self.connections.get(stream.request_id)
        if connection is not None and connection.stream is stream:
            del self.connections[stream.request_id]
            if connection.has_joined:
                self._leave(connection.client, is_done=True)

    def _send(self) -> None:
        outgoing, self.attachments.outgoing = self.attachments.outgoing, []
        for message in outgoing:
            if isinstance(message, SendAttach):
                self._send_attach(message)
                continue
            detach = Detach(request_id=message.request_id, number=message.number, inbox=self.inbox)
            for detokenizer in self.shard.detokenizers:
                self.world.send(self, detokenizer, detokenizer.on_detach, detach)

    def _send_attach(self, message: SendAttach) -> None:
        """To the one that is named, or to any of the queue group, a stopped one among them."""
        group = [one for one in self.shard.detokenizers if message.detokenizer in ("", one.name)]
        if group:
            stream = message.stream
            attach = Attach(
                request_id=stream.request_id,
                inbox=self.inbox,
                number=message.number,
                positions=tuple(stream.positions),
            )
            chosen = self.world.random.choice(group)
            self.world.send(self, chosen, chosen.on_attach, attach)
