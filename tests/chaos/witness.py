"""Folds the log from its first record while it grows, past the proxy, and tells the ledger what it says.

It keeps nothing that the fold forgets, so the log may be trimmed and the run may last for hours.
"""

from array import array

from shared.bus.client import Bus
from shared.bus.log_tail import NatsTail
from shared.bus.nats_log import NatsLog
from shared.endings import FINISH_REASONS
from shared.log.fold import Change, Fold
from shared.log.state import RequestState
from shared.messages.pipeline import Done, Request
from tests.chaos.ledger import Ledger, Truth

WRONG_COUNTS = {
    "row_missing": "rows that skipped a position",
    "row_repeated": "rows that came again under a valid epoch",
    "row_foreign": "rows of no request",
    "done_unknown": "outcomes of no request",
    "done_conflict": "outcomes that contradict an earlier one",
    "prefix_mismatched": "rows on a wrong prefix",
    "malformed": "records that nobody can read",
}


class Witness:
    """One shard's log as a ledger needs it. Use start and stop.

    num_reloads: times it had to skip records; 0 unless the log was trimmed faster than it was read. error: why it can
    fold no more, None as long as it can.
    """

    def __init__(self, ledger: Ledger, bus: Bus, shard: str = "s0") -> None:
        self.fold = Fold()
        self.num_reloads = 0
        self.error: BaseException | None = None
        self._ledger = ledger
        self._bus = bus
        self._tail: NatsTail = NatsLog(bus, shard).tail(self.fold, self._on_record, self._on_reload)

    @classmethod
    async def start(cls, ledger: Ledger, url: str) -> "Witness":
        """Connect and fold what is there."""
        bus = await Bus.connect(url, "chaos-witness")
        witness = cls(ledger, bus)
        bus.fatal = witness._on_fatal
        await witness._tail.start()
        return witness

    async def stop(self) -> None:
        """Leave."""
        await self._tail.stop()
        await self._bus.close()

    @property
    def is_live(self) -> bool:
        """Whether everything that the log holds is folded."""
        return self._tail.live

    def wrongs(self) -> dict[str, int]:
        """What no log may hold, by name of the fold's count; empty for a clean one."""
        return {name: self.fold.counts[name] for name in WRONG_COUNTS if self.fold.counts[name]}

    def _on_fatal(self, error: BaseException) -> None:
        self.error = self.error or error

    def _on_reload(self) -> None:
        self.num_reloads += 1

    def _on_record(self, change: Change) -> None:
        record = change.record
        if not change.counted:
            return
        if isinstance(record, Request):
            self._ledger.on_request(record.request_id)
        elif isinstance(record, Done):
            self._ledger.on_done(_truth(self.fold.requests[record.request_id], record))


def _truth(state: RequestState, done: Done) -> Truth:
    first = state.sequences[0]
    reason = FINISH_REASONS.get(done.reasons[0], done.reasons[0])
    return Truth(state.request.request_id, state.log_sequence, array("i", first.tokens), reason, done.positions[0])
