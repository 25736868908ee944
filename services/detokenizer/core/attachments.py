"""Who reads which request, and how far each reader is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.detokenizer.core.client_messages import ClientFormatter
from shared.messages.control import Attach, Detach

REMEMBER_ENDED_S = 10.0


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
    """All readers of this detokenizer, by request and inbox: the newest attach of an inbox to a request stands.

    Messages of different senders may overtake each other. What a Detach by inbox has ended is therefore remembered
    for a while, so that an Attach which was on its way at that time does not bring it back (rule 15).
    """

    def __init__(self) -> None:
        self._by_request: dict[str, dict[str, Attachment]] = {}
        self._ended: dict[tuple[str, str], tuple[int, float]] = {}

    def __len__(self) -> int:
        return sum(len(readers) for readers in self._by_request.values())

    def is_outdated(self, attach: Attach) -> bool:
        """Whether a newer attachment of this inbox to this request stands, or this one has been ended already."""
        standing = self._by_request.get(attach.request_id, {}).get(attach.inbox)
        if standing is not None and standing.number > attach.number:
            return True
        ended = self._ended.get((attach.request_id, attach.inbox))
        return ended is not None and attach.number <= ended[0]

    def add(self, attachment: Attachment) -> None:
        """Register a reader in the place of an older one with the same inbox."""
        attach = attachment.attach
        self._by_request.setdefault(attach.request_id, {})[attach.inbox] = attachment

    def of(self, request_id: str) -> list[Attachment]:
        """The readers of a request."""
        readers = self._by_request.get(request_id)
        return list(readers.values()) if readers else []

    def remove(self, attachment: Attachment) -> None:
        """The reader has all it will get, or is gone."""
        attach = attachment.attach
        readers = self._by_request.get(attach.request_id)
        if readers is not None and readers.get(attach.inbox) is attachment:
            del readers[attach.inbox]
            if not readers:
                del self._by_request[attach.request_id]

    def detach(self, detach: Detach, now: float) -> None:
        """The reader is gone; an unknown one is no news."""
        if not detach.inbox:
            for attachment in self.of(detach.request_id):
                if attachment.number == detach.number:
                    self.remove(attachment)
            return
        standing = self._by_request.get(detach.request_id, {}).get(detach.inbox)
        if standing is not None and standing.number <= detach.number:
            self.remove(standing)
        key = (detach.request_id, detach.inbox)
        newest = max(detach.number, self._ended.pop(key, (detach.number, now))[0])
        self._ended[key] = (newest, now)

    def forget_ended(self, now: float) -> None:
        """Drop what was remembered longer than a message can be on its way."""
        while self._ended:
            key, (_, since) = next(iter(self._ended.items()))
            if now - since <= REMEMBER_ENDED_S:
                break
            del self._ended[key]

    def __iter__(self) -> Iterator[Attachment]:
        for readers in list(self._by_request.values()):
            yield from list(readers.values())

    def batch_inboxes(self) -> set[str]:
        """Inboxes that read in batches, and so want the heartbeat."""
        return {reader.attach.inbox for reader in self if reader.attach.style == "batch"}
