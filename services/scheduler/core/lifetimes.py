"""When a request must end although its tokens could go on: its deadline, or nobody left to read it.

    owner      keep_s    ends with cancel when
    none       -         never: it runs for whoever attaches
    a gateway  0         the gateway is silent
    a gateway  > 0       no gateway has read it for keep_s; a Reader record says who reads, and the leader writes
                         it for a gateway that is silent

Who reads, and since when nobody does, is in the fold, so a new leader goes on where the old one stopped; only the
gateways' silence is measured anew. Pure: times are arguments, what follows is returned as records to append.
"""

from services.scheduler.core.deadlines import Deadlines
from services.scheduler.core.readership import Readership
from shared.log.state import RequestState
from shared.messages.pipeline import End, Reader

GATEWAY_GONE = "the gateway that read it is gone"
NOBODY_READS = "nobody has read it for as long as it is kept"
SECOND_NS = 10**9

Appended = tuple[End | Reader, str]


class Lifetimes:
    """Of all live requests of the shard. Each call costs O(log n) at most, a tick what is due and O(gateways).

    num_abandoned: requests that were to end because nobody read them.
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

    def due(self, now: float, now_ns: int) -> list[Appended]:
        """Records to append, each with its message id, for all that is over by now. now_ns: Unix time."""
        records: list[Appended] = []
        for request_id in self._deadlines.pop_due(now_ns):
            end = End(request_id=request_id, reason="deadline", message="deadline exceeded")
            records.append((end, f"deadline-{request_id}"))
        records.extend(self._abandon(request_id, NOBODY_READS) for request_id in self._unread.pop_due(now_ns))
        for gateway, request_ids in self.readership.take_silent(now):
            records.extend(self._read_no_more(gateway, request_id, now_ns) for request_id in sorted(request_ids))
        return records

    def _read_no_more(self, gateway: str, request_id: str, now_ns: int) -> Appended:
        if self._live[request_id].request.keep_s <= 0:
            return self._abandon(request_id, GATEWAY_GONE)
        # a gateway may come back and fall silent again: the message id is this occasion's alone, under any leader
        reader = Reader(request_id=request_id, gateway=gateway, reads=False)
        return reader, f"unread-{request_id}-{gateway}-{now_ns}"

    def _abandon(self, request_id: str, message: str) -> Appended:
        self.num_abandoned += 1
        return End(request_id=request_id, reason="cancel", message=message), f"abandoned-{request_id}"
