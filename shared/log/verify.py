"""The proof that a log is whole (protocol rule 21): fold snapshot and log, and count what must not be."""

import msgspec

from shared.endings import FINISH_REASONS
from shared.log import snapshot
from shared.log.fold import Fold
from shared.log.port import Log
from shared.log.state import RequestState

OVERDUE_NS = 10 * 10**9


class VerifiedChoice(msgspec.Struct):
    """One choice of a request; finish_reason is None while it runs."""

    token_ids: list[int]
    finish_reason: str | None


class VerifiedRequest(msgspec.Struct):
    """A request as the log has it. token_ids and finish_reason are those of choice 0; choices has all where n > 1."""

    token_ids: list[int]
    finish_reason: str | None
    choices: list[VerifiedChoice] = []


class Report(msgspec.Struct, kw_only=True):
    """lost: rows that skipped a position, and requests whose outcome is overdue. duplicated: rows and outcomes that
    came again under a valid epoch and differed. foreign: rows and outcomes of no request. prefix_mismatched: rows that
    were computed on another prefix than the logged one. requests: all that log and snapshot still hold."""

    lost: int
    duplicated: int
    foreign: int
    prefix_mismatched: int
    malformed: int
    num_records: int
    requests: dict[str, VerifiedRequest]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.foreign or self.prefix_mismatched or self.malformed)


class ArchiveFold(Fold):
    """A fold that keeps what it would forget."""

    def __init__(self) -> None:
        super().__init__()
        self.archive: dict[str, RequestState] = {}

    def on_retired(self, state: RequestState) -> None:
        """Keep a request that is forgotten."""
        self.archive[state.request.request_id] = state

    def all_requests(self) -> dict[str, RequestState]:
        """Every request folded, forgotten ones among them."""
        return self.archive | self.requests


async def verify(log: Log) -> Report:
    """Fold the log from its oldest snapshot on (from its first record if nothing was trimmed), and report."""
    fold = ArchiveFold()
    if await log.is_trimmed():
        oldest = await log.load_snapshot(oldest=True)
        if oldest is not None:
            snapshot.restore(fold, oldest)
    tail = log.tail(fold, lambda change: None, lambda: None)
    await tail.start()
    await tail.stop()
    return report_of(fold)


def report_of(fold: ArchiveFold) -> Report:
    """What a finished fold says."""
    counts = fold.counts
    requests = fold.all_requests()
    overdue = sum(_is_overdue(state, fold.clock_ns) for state in requests.values())
    return Report(
        lost=counts["row_missing"] + overdue,
        duplicated=counts["row_repeated"] + counts["done_conflict"],
        foreign=counts["row_foreign"] + counts["done_unknown"],
        prefix_mismatched=counts["prefix_mismatched"],
        malformed=counts["malformed"],
        num_records=fold.seq,
        requests={request_id: _verified(state) for request_id, state in requests.items()},
    )


def _is_overdue(state: RequestState, now_ns: int) -> bool:
    return state.done is None and now_ns > state.request.deadline_ns + OVERDUE_NS


def _verified(state: RequestState) -> VerifiedRequest:
    choices = [
        VerifiedChoice(
            list(sequence.tokens),
            None if sequence.reason is None else FINISH_REASONS.get(sequence.reason, sequence.reason),
        )
        for sequence in state.sequences
    ]
    first = choices[0]
    return VerifiedRequest(first.token_ids, first.finish_reason, choices if len(choices) > 1 else [])
