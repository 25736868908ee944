"""The one fold: records in log order in, the state of the shard out.

Scheduler, detokenizer, verifier and simulation run this same code; a process that dies folds the log again and is
where it was. Nothing but the records and their JetStream timestamps goes in, so every reader agrees.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from shared.log.state import MAX_CHOICES, RequestState, SequenceState, Tombstone
from shared.messages.codec import WireError, decoder
from shared.messages.packed import INT32, UINT32, UINT64, unpack
from shared.messages.pipeline import Done, End, Fence, Reader, Request, Rows

KEEP_FINISHED_NS = 30 * 10**9
KEEP_RESUMABLE_NS = 75 * 10**9  # more than keep_s, so that a client that comes back in time finds its text
KEEP_TOMBSTONE_NS = 300 * 10**9

Record = Request | Rows | Fence | End | Done | Reader

_DECODERS = {
    "req": decoder(Request),
    "out": decoder(Rows),
    "fence": decoder(Fence),
    "end": decoder(End | Done | Reader),
}


class LogGapError(RuntimeError):
    """A record that does not follow the last one folded: the reader of the log is broken."""


@dataclass(slots=True)
class Change:
    """What one record did. record is None if it was malformed; counted is False if it was dropped by a rule.

    sequences: those which gained a token, began or ended by it.
    """

    kind: str
    record: Record | None
    counted: bool = False
    sequences: list[SequenceState] = field(default_factory=list)


class Fold:
    """State of a shard after record seq. fencing=False is the negative control of the chaos tests only."""

    def __init__(self, *, fencing: bool = True) -> None:
        self.fencing = fencing
        self.seq = 0
        self.clock_ns = 0
        self.leader = ""
        self.takeover = 0
        self.newest_fence = 0
        self.worker_fences: dict[str, int] = {}
        self.next_steps: dict[str, int] = {}
        self.requests: dict[str, RequestState] = {}
        self.sequences: dict[int, SequenceState] = {}
        self.finished: deque[tuple[int, str]] = deque()
        self.finished_resumable: deque[tuple[int, str]] = deque()
        self.tombstones: dict[str, Tombstone] = {}
        self.retired: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self._appliers: dict[str, Callable[[Any, Change], None]] = {
            "req": self._request,
            "out": self._rows,
            "fence": self._fence,
            "end": self._end_or_done,
        }

    def epoch_of(self, worker: str) -> int:
        """Epoch under which this worker's frames count: its newest fence, by take-over or its own."""
        return max(self.takeover, self.worker_fences.get(worker, 0))

    def folded_step(self, worker: str) -> int:
        """Newest step of the worker's epoch that is folded; 0 if none is."""
        return self.next_steps.get(worker, 1) - 1

    def apply(self, kind: str, data: bytes, seq: int, clock_ns: int) -> Change:
        """Fold the record with log sequence seq. Raises LogGapError unless it follows the last one."""
        if seq != self.seq + 1:
            raise LogGapError(f"record {seq} after {self.seq}")
        self.seq = seq
        self.clock_ns = max(clock_ns, self.clock_ns)
        if kind == "fence":
            self.newest_fence = seq  # even one that nobody can read: to the server it is the newest all the same
        try:
            record = _DECODERS[kind](data)
        except (WireError, KeyError):
            self.counts["malformed"] += 1
            return Change(kind, None)
        change = Change(kind, record)
        self._appliers[kind](record, change)
        self._expire()
        return change

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _request(self, request: Request, change: Change) -> None:
        early_cancel = False
        tombstone = self.tombstones.get(request.request_id)
        if tombstone is not None and tombstone.is_early_cancel:
            del self.tombstones[request.request_id]
            early_cancel = True
        elif tombstone is not None or request.request_id in self.requests:
            self.counts["request_repeated"] += 1
            return
        if not 1 <= request.sampling.n <= MAX_CHOICES or len(request.prompt_token_ids) % 4:
            self.counts["malformed"] += 1
            return
        state = RequestState(request, self.seq)
        self.requests[request.request_id] = state
        for sequence in state.sequences:
            self.sequences[sequence.id] = sequence
            if early_cancel:
                sequence.cut(0, "cancel")
        change.counted = True
        change.sequences.extend(state.sequences)

    # ---- output of workers ------------------------------------------------------------------------------------------

    def _rows(self, frame: Rows, change: Change) -> None:
        try:
            columns = (
                unpack(UINT64, frame.sequences),
                unpack(INT32, frame.positions),
                unpack(INT32, frame.tokens),
                unpack(UINT32, frame.prefix_hashes),
            )
        except ValueError:
            self.counts["malformed"] += 1
            return
        if len({len(column) for column in columns}) != 1 or len(frame.logprobs) not in (0, len(columns[0])):
            self.counts["malformed"] += 1
            return
        if self.fencing and not self._is_due(frame):
            return
        self.next_steps[frame.worker] = frame.step + 1
        change.counted = True
        self._fold_rows(frame, columns, change.sequences)
        for error in frame.errors:
            sequence = self.sequences.get(error.sequence)
            if sequence is not None and sequence.end is None:
                sequence.cut(len(sequence.tokens), "error")
                sequence.message = error.message
                change.sequences.append(sequence)

    def _is_due(self, frame: Rows) -> bool:
        """Whether the frame is the next step under its worker's own epoch (rules 1 and 4)."""
        if frame.epoch != self.epoch_of(frame.worker):
            self.counts["frame_stale"] += 1
            return False
        due = self.next_steps.get(frame.worker, 1)
        if frame.step != due:
            self.counts["frame_repeated" if frame.step < due else "frame_gap"] += 1
            return False
        return True

    def _fold_rows(self, frame: Rows, columns: tuple[Any, Any, Any, Any], changed: list[SequenceState]) -> None:
        known = self.sequences
        logprobs = frame.logprobs
        for row, (number, position, token, prefix_hash) in enumerate(zip(*columns, strict=True)):
            sequence = known.get(number)
            if sequence is None or sequence.end is not None:
                self._count_overrun(number, sequence)
                continue
            tokens = sequence.tokens
            if position != len(tokens):
                self.counts["row_repeated" if position < len(tokens) else "row_missing"] += 1
                continue
            if prefix_hash != sequence.prefix_hash:
                self.counts["prefix_mismatched"] += 1
            tokens.append(token)
            sequence.prefix_hash = crc32(frame.tokens[4 * row : 4 * row + 4], sequence.prefix_hash)
            if logprobs and sequence.request.sampling.logprobs is not None:
                sequence.logprobs.append(logprobs[row])
            reason = sequence.endings.after(token, len(tokens))
            if reason is not None:
                sequence.end, sequence.reason = len(tokens), reason
            changed.append(sequence)

    def _count_overrun(self, number: int, sequence: SequenceState | None) -> None:
        known = sequence is not None or number >> 8 in self.retired
        self.counts["row_overrun" if known else "row_foreign"] += 1

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _end_or_done(self, record: End | Done | Reader, change: Change) -> None:
        state = self.requests.get(record.request_id)
        if isinstance(record, Done):
            self._done(record, state, change)
        elif isinstance(record, Reader):
            self._reader(record, state, change)
        elif state is not None:
            self._end(record, state, change)
        elif record.request_id not in self.tombstones and record.reason == "cancel":
            self.tombstones[record.request_id] = Tombstone(self.clock_ns, 0)
            change.counted = True

    def _reader(self, reader: Reader, state: RequestState | None, change: Change) -> None:
        if state is None or state.request.keep_s <= 0:
            return
        if reader.reads:
            state.readers.add(reader.gateway)
            state.unread_ns = None
        elif reader.gateway in state.readers:
            state.readers.remove(reader.gateway)
            if not state.readers:
                state.unread_ns = self.clock_ns
        change.counted = True

    def _end(self, end: End, state: RequestState, change: Change) -> None:
        if state.done is not None:
            return
        chosen = state.sequences if end.choice < 0 else state.sequences[end.choice : end.choice + 1]
        for sequence in chosen:
            folded = len(sequence.tokens)
            position = folded if end.position is None else max(0, min(end.position, folded))
            current = sequence.end
            wins = current is None or position < current
            if not wins and position == current:
                wins = end.reason == "stop_string" and sequence.reason != "stop_string"
            if wins:
                sequence.cut(position, end.reason)
                sequence.message, sequence.param, sequence.code = end.message, end.param, end.code
                change.counted = True
                change.sequences.append(sequence)

    def _done(self, done: Done, state: RequestState | None, change: Change) -> None:
        if state is None:
            self.counts["done_unknown" if done.request_id not in self.tombstones else "done_repeated"] += 1
        elif state.done is not None:
            same = (state.done.positions, state.done.reasons) == (done.positions, done.reasons)
            self.counts["done_repeated" if same else "done_conflict"] += 1
        elif len(done.positions) != len(state.sequences) or len(done.reasons) != len(state.sequences):
            self.counts["malformed"] += 1
        else:
            state.done = done
            change.counted = True
            finished = self.finished_resumable if state.request.keep_s > 0 else self.finished
            finished.append((self.clock_ns, done.request_id))
            for sequence, position, reason in zip(state.sequences, done.positions, done.reasons, strict=True):
                if (sequence.end, sequence.reason) != (position, reason):
                    sequence.cut(position, reason)
                change.sequences.append(sequence)

    # ---- fences -----------------------------------------------------------------------------------------------------

    def _fence(self, fence: Fence, change: Change) -> None:
        self.counts["fence_" + fence.kind] += 1
        change.counted = True
        if fence.kind == "takeover":
            self.leader, self.takeover = fence.leader, self.seq
            self.worker_fences.clear()
            self.next_steps.clear()
        elif fence.kind == "worker":
            self.worker_fences[fence.worker] = self.seq
            self.next_steps.pop(fence.worker, None)

    # ---- forgetting -------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Forget finished requests after a while, and their tombstones after a longer one (rule 12)."""
        self._retire(self.finished, KEEP_FINISHED_NS)
        self._retire(self.finished_resumable, KEEP_RESUMABLE_NS)
        while self.tombstones:
            request_id, tombstone = next(iter(self.tombstones.items()))
            if tombstone.clock_ns >= self.clock_ns - KEEP_TOMBSTONE_NS:
                break
            del self.tombstones[request_id]
            self.retired.pop(tombstone.log_sequence, None)

    def _retire(self, finished: deque[tuple[int, str]], keep_ns: int) -> None:
        while finished and finished[0][0] < self.clock_ns - keep_ns:
            _, request_id = finished.popleft()
            state = self.requests.pop(request_id)
            for sequence in state.sequences:
                del self.sequences[sequence.id]
            self.tombstones[request_id] = Tombstone(self.clock_ns, state.log_sequence, state.done)
            self.retired[state.log_sequence] = request_id
            self.on_retired(state)

    def on_retired(self, state: RequestState) -> None:
        """Called as a finished request is forgotten; readers that keep an archive override it."""
