"""Log records for tests, and a fold with a clock of its own."""

from collections.abc import Sequence

from shared.log.fold import Change, Fold, Record
from shared.log.state import SequenceState, sequence_id
from shared.messages.codec import encode
from shared.messages.packed import INT32, UINT32, UINT64, pack, pack_tokens
from shared.messages.pipeline import Fence, Request, RowLogprobs, Rows
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend

PROMPT = [5, 6, 7]
EOS = 2
SECOND_NS = 10**9


def request(request_id: str = "a" * 32, prompt: Sequence[int] = PROMPT, **sampling: object) -> Request:
    """An accepted request; max_tokens 8 and EOS 2 unless given otherwise."""
    values = {"max_tokens": 8, "eos_token_ids": (EOS,)} | sampling
    return Request(
        request_id=request_id,
        model="m",
        model_version="1",
        prompt_token_ids=pack_tokens(prompt),
        sampling=Sampling(**values),  # type: ignore[arg-type]
        deadline_ns=4 * 10**18,
    )


def rows(
    worker: str,
    epoch: int,
    step: int,
    *entries: tuple[int, int, int, int],
    logprobs: list[RowLogprobs | None] | None = None,
) -> Rows:
    """A frame; each entry is (sequence, position, token, prefix hash)."""
    columns = list(zip(*entries, strict=True)) if entries else [(), (), (), ()]
    return Rows(
        worker=worker,
        epoch=epoch,
        step=step,
        sequences=pack(UINT64, columns[0]),
        positions=pack(INT32, columns[1]),
        tokens=pack(INT32, columns[2]),
        prefix_hashes=pack(UINT32, columns[3]),
        logprobs=logprobs or [],
    )


def prefix_hash(prompt: Sequence[int], outputs: Sequence[int]) -> int:
    """What a row computed on prompt and outputs must carry."""
    return extend(0, pack_tokens([*prompt, *outputs]))


class FoldUnderTest(Fold):
    """A fold that is fed records one after the other; the clock moves a millisecond a record."""

    def __init__(self, *, fencing: bool = True) -> None:
        super().__init__(fencing=fencing)
        self.now_ns = SECOND_NS

    def feed(self, record: Record) -> Change:
        """Fold the next record."""
        kind = {Request: "req", Rows: "out", Fence: "fence"}.get(type(record), "end")
        return self.feed_bytes(kind, encode(record))

    def feed_bytes(self, kind: str, data: bytes) -> Change:
        """Fold the next record from its bytes."""
        self.now_ns += 10**6
        return self.apply(kind, data, self.seq + 1, self.now_ns)

    def accept(self, record: Request) -> list[SequenceState]:
        """Fold a request and return its sequences."""
        return self.feed(record).sequences

    def row(self, sequence: SequenceState, token: int) -> tuple[int, int, int, int]:
        """The entry that a correct worker computes next."""
        return (sequence.id, len(sequence.tokens), token, sequence.prefix_hash)


def log_id(log_sequence: int, choice: int = 0) -> int:
    """Short for sequence_id."""
    return sequence_id(log_sequence, choice)
