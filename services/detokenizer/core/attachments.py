"""Who reads which request, and how far each reader is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.detokenizer.core.client_messages import ClientFormatter
from shared.messages.control import Attach


@dataclass(slots=True)
class Attachment:
    """One reader. positions: tokens that it has, by choice. ended: choices whose last delta was sent.

    since: when it was made, or when this detokenizer last was behind the log without its request being folded (seconds
    of a monotonic clock). formatter: the messages of a plain client.
    """

    attach: Attach
    since: float
    positions: list[int]
    ended: set[int] = field(default_factory=set)
    formatter: ClientFormatter = field(default_factory=ClientFormatter)

    @property
    def number(self) -> int:
        """What the reader knows it by."""
        return self.attach.number


class Attachments:
    """All readers of this detokenizer, by request and inbox: the newest attach of an inbox to a request stands."""

    def __init__(self) -> None:
        self._by_request: dict[str, dict[str, Attachment]] = {}

    def __len__(self) -> int:
        return sum(len(readers) for readers in self._by_request.values())

    def add(self, attachment: Attachment) -> None:
        """Register a reader in the place of an older one with the same inbox."""
        attach = attachment.attach
        self._by_request.setdefault(attach.request_id, {})[attach.inbox] = attachment

    def of(self, request_id: str) -> list[Attachment]:
        """The readers of a request."""
        readers = self._by_request.get(request_id)
        return list(readers.values()) if readers else []

    def has_readers(self, request_id: str) -> bool:
        """Whether anybody reads the request here."""
        return request_id in self._by_request

    def remove(self, attachment: Attachment) -> None:
        """The reader has all it will get, or is gone."""
        attach = attachment.attach
        readers = self._by_request.get(attach.request_id)
        if readers is not None and readers.get(attach.inbox) is attachment:
            del readers[attach.inbox]
            if not readers:
                del self._by_request[attach.request_id]

    def detach(self, request_id: str, number: int) -> None:
        """The reader with this number is gone; an unknown one is no news."""
        for attachment in self.of(request_id):
            if attachment.number == number:
                self.remove(attachment)

    def __iter__(self) -> Iterator[Attachment]:
        for readers in list(self._by_request.values()):
            yield from list(readers.values())

    def batch_inboxes(self) -> set[str]:
        """Inboxes that read in batches, and so want the heartbeat."""
        return {reader.attach.inbox for reader in self if reader.attach.style == "batch"}
