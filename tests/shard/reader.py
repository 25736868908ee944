"""A gateway's reading end in a simulated shard: the real rules of attaching over a network that loses batches."""

from array import array
from collections.abc import Callable

from shared.messages.codec import decoder
from shared.messages.control import Attach, Detach
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta, DeltaBatch, EndReason
from shared.reading.attachments import Attachments, SendAttach
from shared.reading.stream import Stream
from tests.shard.clockwork import Process, World

INBOX = "_INBOX.reader"
_decode_batch = decoder(DeltaBatch)

ToDetokenizer = Callable[[str, Attach], None]


class Heard:
    """What the reader has of one request, by choice."""

    def __init__(self, num_choices: int) -> None:
        self.token_ids: list[array[int]] = [array("i") for _ in range(num_choices)]
        self.texts = [""] * num_choices
        self.ends: list[EndReason | None] = [None] * num_choices


class SimReader(Process):
    """Reads every request that it is told of. send_attach(detokenizer or "", attach), send_detach(detach)."""

    def __init__(self, world: World, send_attach: ToDetokenizer, send_detach: Callable[[Detach], None]) -> None:
        super().__init__(world, "reader")
        self.heard: dict[str, Heard] = {}
        self.attachments = Attachments()
        self._streams: list[Stream] = []
        self._send_attach = send_attach
        self._send_detach = send_detach
        self.every(0.1, self._tick)

    def read(self, request_id: str, num_choices: int) -> None:
        """Attach to a request, which need not be in the log yet."""
        heard = self.heard[request_id] = Heard(num_choices)

        def on_delta(delta: Delta, now: float) -> None:
            heard.token_ids[delta.choice].extend(unpack_tokens(delta.token_ids))
            heard.texts[delta.choice] += delta.text
            heard.ends[delta.choice] = delta.end
            assert len(heard.token_ids[delta.choice]) == delta.stop

        stream = Stream(request_id, "s0", num_choices, on_delta)
        self._streams.append(stream)
        self.attachments.attach(stream, self.world.now)
        self._send()

    @property
    def is_done(self) -> bool:
        """Whether every stream has its last delta."""
        return all(stream.is_done for stream in self._streams)

    def on_attached(self, number: int, detokenizer: str) -> None:
        """A detokenizer serves an attachment."""
        self.attachments.on_attached(number, detokenizer, self.world.now)

    def on_detokenizer(self, detokenizer: str) -> None:
        """A detokenizer's heartbeat."""
        self.attachments.on_detokenizer("s0", detokenizer, self.world.now)

    def on_batch(self, data: bytes) -> None:
        """Deltas, or the heartbeat of the inbox."""
        for stream, delta in self.attachments.on_batch(_decode_batch(data), self.world.now):
            stream.on_delta(delta, self.world.now)
        self._send()

    def _tick(self) -> None:
        self.attachments.tick(self.world.now)
        self._send()

    def _send(self) -> None:
        outgoing, self.attachments.outgoing = self.attachments.outgoing, []
        for message in outgoing:
            if isinstance(message, SendAttach):
                stream = message.stream
                positions = tuple(stream.positions)
                attach = Attach(request_id=stream.request_id, inbox=INBOX, number=message.number, positions=positions)
                self._send_attach(message.detokenizer, attach)
            else:
                self._send_detach(Detach(request_id=message.request_id, number=message.number, inbox=INBOX))
