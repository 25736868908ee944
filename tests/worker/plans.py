"""Plans written by hand, and a leader small enough to trust: the worker's tests drive it with these."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.messages.packed import INT32, UINT32, UINT64, pack, unpack
from shared.messages.pipeline import NewSequence, Rows, StepPlan
from shared.messages.sampling import Sampling


@dataclass
class Item:
    """One sequence in a plan; tokens are those given, num_scheduled counts the sampled one too."""

    sequence: int
    start: int
    num_scheduled: int
    tokens: Sequence[int] = ()
    position: int = -1
    new_blocks: Sequence[int] = ()


def make_plan(
    epoch: int, step: int, items: Sequence[Item] = (), new: Sequence[NewSequence] = (), forget: Sequence[int] = ()
) -> StepPlan:
    """Items as the columns of a StepPlan."""
    return StepPlan(
        epoch=epoch,
        step=step,
        new=list(new),
        sequences=pack(UINT64, [item.sequence for item in items]),
        start=pack(INT32, [item.start for item in items]),
        num_scheduled=pack(INT32, [item.num_scheduled for item in items]),
        num_given=pack(INT32, [len(item.tokens) for item in items]),
        position=pack(INT32, [item.position for item in items]),
        token_ids=pack(INT32, [token for item in items for token in item.tokens]),
        num_new_blocks=pack(INT32, [len(item.new_blocks) for item in items]),
        new_blocks=pack(INT32, [block for item in items for block in item.new_blocks]),
        forget=pack(UINT64, forget),
    )


@dataclass
class Row:
    """One row of a frame."""

    sequence: int
    position: int
    token: int
    prefix_hash: int


def rows_of(frame: Rows) -> list[Row]:
    """A frame's columns as rows."""
    columns = (
        unpack(UINT64, frame.sequences),
        unpack(INT32, frame.positions),
        unpack(INT32, frame.tokens),
        unpack(UINT32, frame.prefix_hashes),
    )
    return [Row(*values) for values in zip(*columns, strict=True)]


@dataclass
class Planned:
    """A sequence as the small leader sees it: what is known of its tokens, and how far it is planned."""

    id: int
    prompt: list[int]
    sampling: Sampling
    cache_key: str = ""
    outputs: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_planned: int = 0
    num_positions: int = 0
    num_cached: int = 0
    num_loaded: int = 0


class SmallLeader:
    """Plans all its sequences in every step; blocks are handed out from 0 upwards and never taken back."""

    def __init__(self, block_size: int = 16, chunk: int = 64) -> None:
        self.block_size = block_size
        self.chunk = chunk
        self.epoch = 0
        self.step = 0
        self.next_block = 0
        self.sequences: dict[int, Planned] = {}
        self.forget: list[int] = []

    def open_epoch(self, epoch: int) -> None:
        """Nothing is loaded any more; every sequence starts again from what is known of it."""
        self.epoch, self.step = epoch, 0
        self.forget.clear()
        for sequence in self.sequences.values():
            sequence.blocks = []
            sequence.num_planned = sequence.num_cached = sequence.num_loaded = 0
            sequence.num_positions = len(sequence.outputs)

    def add(self, sequence: Planned) -> None:
        """Take part from the next plan on."""
        self.sequences[sequence.id] = sequence

    def remove(self, sequence_id: int) -> None:
        """Forget it with the next plan."""
        del self.sequences[sequence_id]
        self.forget.append(sequence_id)

    def make_plan(self) -> StepPlan | None:
        """The next step, None when nothing is left to plan."""
        new: list[NewSequence] = []
        items: list[Item] = []
        for sequence in self.sequences.values():
            if not sequence.num_loaded:
                new.append(self._load(sequence))
            item = self._item(sequence)
            if item is not None:
                items.append(item)
        if not items and not self.forget:
            return None
        self.step += 1
        plan = make_plan(self.epoch, self.step, items, new, self.forget)
        self.forget = []
        return plan

    def _load(self, sequence: Planned) -> NewSequence:
        tokens = [*sequence.prompt, *sequence.outputs]
        sequence.num_loaded = len(tokens)
        sequence.num_planned = sequence.num_cached
        return NewSequence(
            sequence=sequence.id,
            sampling=sequence.sampling,
            num_prompt_tokens=len(sequence.prompt),
            num_tokens=len(tokens),
            num_cached_tokens=sequence.num_cached,
            block_ids=pack(INT32, sequence.blocks),
            history=pack(INT32, tokens) if sequence.sampling.has_penalties else b"",
            cache_key=sequence.cache_key,
        )

    def _item(self, sequence: Planned) -> Item | None:
        """The next chunk. Tokens from num_loaded on were sampled by the worker since, which has them."""
        if sequence.num_positions >= sequence.sampling.max_tokens:
            return None
        start = sequence.num_planned
        num_tokens = len(sequence.prompt) + sequence.num_positions
        end = min(start + self.chunk, num_tokens)
        tokens = [*sequence.prompt, *sequence.outputs][start : min(end, sequence.num_loaded)]
        position = sequence.num_positions if end == num_tokens else -1
        sequence.num_planned = end
        if position >= 0:
            sequence.num_positions += 1
        num_missing = max(0, -(-end // self.block_size) - len(sequence.blocks))
        blocks = list(range(self.next_block, self.next_block + num_missing))
        self.next_block += num_missing
        sequence.blocks += blocks
        return Item(sequence.id, start, end - start, tokens, position, blocks)

    def update(self, frame: Rows) -> None:
        """Take the rows of a frame."""
        for row in rows_of(frame):
            sequence = self.sequences.get(row.sequence)
            if sequence is not None and row.position == len(sequence.outputs):
                sequence.outputs.append(row.token)
