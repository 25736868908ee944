"""What clients were given, request by request, compared with what the log says (invariants I1, I2, I3 and I5).

An entry is kept until both the client and the log are done with it, then compared, counted and forgotten, so that a
run of hours needs little memory. What does not fit is kept whole, as evidence.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from zlib import crc32

from services.gateway.core.canary import ID_PREFIX as CANARY

MAX_EVIDENCE = 20
MAX_DIGESTS = 5000
FINISHED = ("stop", "length")


@dataclass(slots=True)
class Entry:
    """One request of ours. Times in seconds of the event loop's clock.

    request_id: "" until an answer named it. kind: "stream" must be whole at its end; "storm" is cancelled by its client
    and compared as far as it was read. text: in the pieces that came. outcome: "finished", "failed" or "cancelled", ""
    while it runs. notes: what happened to its connections, newest last.
    """

    key: str
    num_wanted: int
    begun_at: float
    kind: str = "stream"
    request_id: str = ""
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    num_billed: int | None = None
    outcome: str = ""
    error: str = ""
    ended_at: float = 0.0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Something worth knowing if this request turns out wrong."""
        if len(self.notes) < 50:
            self.notes.append(text)


@dataclass(slots=True)
class Truth:
    """A request as folded from the log; log_sequence of its Request record. num_billed: the position in its Done."""

    request_id: str
    log_sequence: int
    token_ids: "array[int]"
    finish_reason: str
    num_billed: int


class Ledger:
    """counts: what was found, by name. evidence: the first few findings, whole. digests: CRC of the tokens that the
    newest whole streams received, to be compared with other readers of the log. decode: the text of token ids.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self.counts: Counter[str] = Counter()
        self.evidence: list[dict[str, Any]] = []
        self.running: dict[str, Entry] = {}
        self.digests: dict[str, int] = {}
        self._ended: dict[str, Entry] = {}
        self._truths: dict[str, Truth] = {}
        self._logged: set[str] = set()

    @property
    def num_open(self) -> int:
        """Requests that the log holds without an outcome."""
        return len(self._logged)

    # ---- the client's side

    def begin(self, entry: Entry) -> None:
        """A request is about to be sent."""
        self.counts["sent"] += 1
        self.running[entry.key] = entry

    def end(self, entry: Entry) -> None:
        """The client is done with it, for better or worse."""
        del self.running[entry.key]
        if not entry.request_id:
            self.counts[f"{entry.kind} unanswered"] += 1
            if entry.kind == "stream":
                self._find("refused", entry, None)
            return
        self.counts[f"{entry.kind} {entry.outcome}"] += 1
        truth = self._truths.pop(entry.request_id, None)
        if truth is None:
            self._ended[entry.request_id] = entry
        else:
            self._compare(entry, truth)

    # ---- the log's side

    def on_request(self, request_id: str) -> None:
        """The log holds a request: it is accepted, whoever sent it."""
        self._logged.add(request_id)
        self.counts["canaries" if request_id.startswith(CANARY) else "accepted"] += 1

    def on_done(self, truth: Truth) -> None:
        """The log holds the request's outcome."""
        self._logged.discard(truth.request_id)
        if truth.request_id.startswith(CANARY):
            return  # the gateways' own
        self.counts["done"] += 1
        entry = self._ended.pop(truth.request_id, None)
        if entry is None:
            self._truths[truth.request_id] = truth
        else:
            self._compare(entry, truth)

    # ---- both

    def _compare(self, entry: Entry, truth: Truth) -> None:
        self.counts["compared"] += 1
        self.counts["tokens compared"] += len(entry.token_ids)
        if truth.num_billed != len(truth.token_ids) or entry.num_billed not in (None, truth.num_billed):
            self._find("billed wrong", entry, truth)
        if entry.kind == "stream":
            self._compare_stream(entry, truth)
        elif truth.token_ids[: len(entry.token_ids)] != entry.token_ids:
            self._count_differences(entry, truth)

    def _compare_stream(self, entry: Entry, truth: Truth) -> None:
        if entry.outcome != "finished":
            self._find("lost", entry, truth)
        elif entry.token_ids != truth.token_ids:
            self._count_differences(entry, truth)
        elif entry.finish_reason != truth.finish_reason:
            self._find("reason differs", entry, truth)
        elif len(entry.token_ids) != entry.num_wanted and truth.finish_reason == "length":
            self._find("cut short", entry, truth)
        elif "".join(entry.text) != self._decode(list(truth.token_ids)):
            self._find("text differs", entry, truth)
        self.digests[entry.request_id] = crc32(entry.token_ids)
        if len(self.digests) > MAX_DIGESTS:
            del self.digests[next(iter(self.digests))]

    def _count_differences(self, entry: Entry, truth: Truth) -> None:
        for name, number in differences(entry.token_ids, truth.token_ids).items():
            if number:
                self._find(name, entry, truth, number)

    def _find(self, name: str, entry: Entry, truth: Truth | None, number: int = 1) -> None:
        self.counts[name] += number
        if len(self.evidence) < MAX_EVIDENCE:
            self.evidence.append({"finding": name, "client": _readable(entry), "log": _readable(truth)})

    def close(self) -> None:
        """After the run: what has no counterpart is lost."""
        for entry in (*self._ended.values(), *self.running.values()):
            name = "unknown to the log" if entry.request_id not in self._logged else "without outcome"
            self._find(name, entry, None)
        self.counts["without outcome"] += len(self._logged - self._ended.keys())
        # a client of the storm that left before its answer does not know whether it was accepted
        self.counts["unknown to any client"] = max(0, len(self._truths) - self.counts["storm unanswered"])


def differences(read: "array[int]", logged: "array[int]") -> dict[str, int]:
    """How the tokens that were read differ from the logged ones: numbers of missing, duplicated, foreign, reordered."""
    have, want = Counter(read), Counter(logged)
    extra, missing = have - want, want - have
    foreign = sum(number for token, number in extra.items() if token not in want)
    reordered = 0
    if not extra and not missing:
        reordered = sum(a != b for a, b in zip(read, logged, strict=True))
    return {
        "missing": missing.total(),
        "duplicated": extra.total() - foreign,
        "foreign": foreign,
        "reordered": reordered,
    }


def _readable(record: Entry | Truth | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {name: list(value) if isinstance(value, array) else value for name, value in asdict(record).items()}
