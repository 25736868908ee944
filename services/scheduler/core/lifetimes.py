"""When a request must end although its tokens could go on: its deadline, or nobody left to read it.

    owner      keep_s    ends with cancel when
    none       -         never: it runs for whoever attaches
    a gateway  0         the gateway is gone
    a gateway  > 0       no gateway has read it for keep_s; a Reader record says who reads, and the leader writes
                         it for a gateway that is gone

Who reads, and since when nobody does, is in the fold, so a new leader goes on where the old one stopped; only the
gateways' silence is measured anew. Pure: times are arguments, what follows is returned as records to append.

Silence may end while the log is away, and so may that nobody reads: a cut that takes a gateway off the bus is often one
that takes the log away too. So each record says whether it still holds, and is withdrawn where it does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.scheduler.core.deadlines import Deadlines
from services.scheduler.core.readership import Readership
from shared.log.state import RequestState
from shared.messages.pipeline import End, Reader

GATEWAY_GONE = "the gateway that read it is gone"
NOBODY_READS = "nobody has read it for as long as it is kept"
SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Due:
    """A record to append, with its message id. holds: whether what it says is still so."""

    record: End | Reader
    message_id: str
    holds: Callable[[], bool]


class Lifetimes:
    """Of all live requests of the shard. Each call costs O(log n) at most, a tick what is due and O(gateways).

    num_abandoned: requests that ended because nobody read them.
    """

    def __init__(self) -> None:
        self.readership = Readership()
        self.num_abandoned = 0
        self._live: dict[str, RequestState] = {}
        self._deadlines = Deadlines()
        self._unread = Deadlines()

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, state: RequestState, now: float) -> None:
        """A live request, new or found by a take-over."""
        request = state.request
        self._live[request.request_id] = state
        self._deadlines.set(request.request_id, request.deadline_ns)
        if request.keep_s <= 0 and request.owner:
            self.readership.add(request.request_id, request.owner, now)
        for gateway in state.readers:
            if gateway:
                self.readership.add(request.request_id, gateway, now)
        self._watch_unread(state)

    def on_reader(self, reader: Reader, now: float) -> None:
        """A Reader record was folded."""
        state = self._live.get(reader.request_id)
        if state is None:
            return
        if reader.gateway in state.readers:
            self.readership.add(reader.request_id, reader.gateway, now)
        elif state.request.keep_s > 0:
            self.readership.remove(reader.request_id, reader.gateway)
        self._watch_unread(state)

    def on_end(self, request_id: str) -> None:
        """A choice of the request has ended; after the last of them nothing more can befall it."""
        state = self._live.get(request_id)
        if state is None or not state.ended:
            return
        del self._live[request_id]
        self._deadlines.discard(request_id)
        self._unread.discard(request_id)
        for gateway in (state.request.owner, *state.readers):
            self.readership.remove(request_id, gateway)

    def _watch_unread(self, state: RequestState) -> None:
        request = state.request
        if state.unread_ns is None:
            self._unread.discard(request.request_id)
        else:
            self._unread.set(request.request_id, state.unread_ns + int(request.keep_s * SECOND_NS))

    def on_end_record(self, end: End) -> None:
        """An End of these was folded, and was the first."""
        self.num_abandoned += end.message in (GATEWAY_GONE, NOBODY_READS)

    def due(self, now_ns: int) -> list[Due]:
        """Ends of all whose time is over. now_ns: Unix time."""
        dues: list[Due] = []
        for request_id in self._deadlines.pop_due(now_ns):
            end = End(request_id=request_id, reason="deadline", message="deadline exceeded")
            dues.append(Due(end, f"deadline-{request_id}", lambda: True))
        dues += [
            self._abandon(request_id, NOBODY_READS, self._still_unread(self._live[request_id]))
            for request_id in self._unread.pop_due(now_ns)
        ]
        return dues

    def due_to_silence(self, now: float, now_ns: int) -> list[tuple[str, list[Due]]]:
        """Gateways that fell silent, each with what follows for the requests that it read."""
        return [
            (gateway, [self._read_no_more(gateway, request_id, now_ns) for request_id in sorted(request_ids)])
            for gateway, request_ids in self.readership.take_silent(now)
        ]

    def _still_unread(self, state: RequestState) -> Callable[[], bool]:
        since_ns = state.unread_ns
        return lambda: state.unread_ns == since_ns

    def _read_no_more(self, gateway: str, request_id: str, now_ns: int) -> Due:
        def holds() -> bool:
            return self.readership.is_given_up(gateway, request_id)

        if self._live[request_id].request.keep_s <= 0:
            return self._abandon(request_id, GATEWAY_GONE, holds)
        # a gateway may come back and fall silent again: the message id is this occasion's alone, under any leader
        reader = Reader(request_id=request_id, gateway=gateway, reads=False)
        return Due(reader, f"unread-{request_id}-{gateway}-{now_ns}", holds)

    def _abandon(self, request_id: str, message: str, holds: Callable[[], bool]) -> Due:
        return Due(End(request_id=request_id, reason="cancel", message=message), f"abandoned-{request_id}", holds)
