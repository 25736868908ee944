"""A worker without a model that distrusts every plan: it tracks what each KV slot holds and checks what it reads."""

import random
from array import array
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from shared.block_hash import block_hash, root_hash
from shared.endings import Endings
from shared.messages.control import WorkerHeartbeat
from shared.messages.packed import INT32, UINT32, UINT64, pack, pack_tokens, unpack, unpack_tokens
from shared.messages.pipeline import NewSequence, Rows, StepPlan
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend_by_one

MODEL, VERSION = "simulated", "1"
VOCAB_SIZE = 1000


@dataclass(frozen=True, eq=False)
class Content:
    """What a slot holds: the KV of one token, which is a function of everything before it."""

    parent: "Content | None"
    token: int
    num_tokens: int
    prefix_hash: int
    cache_key: str
    block_name: bytes


class Contents:
    """Equal prefixes are the same object, so that slots are compared by identity."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._known: dict[tuple[Content | str, int], Content] = {}

    def after(self, parent: Content | None, token: int, cache_key: str) -> Content:
        """The content of a token that follows parent."""
        key = (parent or cache_key, token)
        content = self._known.get(key)
        if content is None:
            num_tokens = parent.num_tokens + 1 if parent else 1
            content = Content(
                parent,
                token,
                num_tokens,
                extend_by_one(parent.prefix_hash if parent else 0, token),
                cache_key,
                self._name(parent, token, num_tokens, cache_key),
            )
            self._known[key] = content
        return content

    def _name(self, parent: Content | None, token: int, num_tokens: int, cache_key: str) -> bytes:
        """Hash of the block that ends here, b"" if none does."""
        if num_tokens % self.block_size:
            return b""
        tokens = [token]
        while len(tokens) < self.block_size:
            assert parent is not None
            tokens.insert(0, parent.token)
            parent = parent.parent
        return block_hash(parent.block_name if parent else root_hash(cache_key), pack_tokens(tokens))


@dataclass
class Loaded:
    """A sequence in the worker's memory. last: content of its last computed token."""

    new: NewSequence
    table: "array[int]"
    last: Content | None
    endings: Endings
    num_outputs: int
    own_token: int = -1
    finished: bool = False


@dataclass
class SimulatedWorker:
    """Executes plans in order. withhold: sequences whose next row it loses."""

    name: str
    num_blocks: int
    block_size: int
    contents: Contents
    rng: random.Random
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16
    max_model_len: int = 256
    enable_prefix_caching: bool = True
    epoch: int = 0
    plans: deque[StepPlan] = field(default_factory=deque)
    frames: deque[Rows] = field(default_factory=deque)
    loaded: dict[int, Loaded] = field(default_factory=dict)
    next_step: int = 1
    num_computed_tokens: int = 0
    num_rows: int = 0
    withhold: set[int] = field(default_factory=set)
    step_sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots: list[Content | None] = [None] * (self.num_blocks * self.block_size)

    def heartbeat(self, *, leaving: bool = False) -> WorkerHeartbeat:
        """As it would be sent now."""
        return WorkerHeartbeat(
            worker=self.name,
            epoch=self.epoch,
            next_plan=self.next_step,
            started=self.next_step - 1,
            finished=self.next_step - 1,
            idle=not self.plans,
            leaving=leaving,
            model=MODEL,
            model_version=VERSION,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def start_epoch(self, epoch: int) -> list[tuple[int, bytes]]:
        """Drop queued plans and sequences; report the blocks whose slots hold one chain, as a real worker does."""
        self.epoch, self.next_step = epoch, 1
        self.plans.clear()
        self.frames.clear()
        self.loaded.clear()
        report = []
        for block in range(self.num_blocks):
            slots = self.slots[block * self.block_size : (block + 1) * self.block_size]
            chained = all(b is not None and b.parent is a for a, b in pairwise(slots))
            if chained and slots[-1] is not None and slots[-1].block_name:
                report.append((block, slots[-1].block_name))
        return report

    def execute(self) -> None:
        """The next plan becomes a frame."""
        plan = self.plans.popleft()
        assert (plan.epoch, plan.step) == (self.epoch, self.next_step)
        self.next_step += 1
        for number in unpack(UINT64, plan.forget):
            del self.loaded[number]
        for new in plan.new:
            self._load(new)
        rows: tuple[array[int], ...] = (array(UINT64), array(INT32), array(INT32), array(UINT32))
        token_ids = deque(unpack_tokens(plan.token_ids))
        new_blocks = deque(unpack(INT32, plan.new_blocks))
        columns = [
            unpack(INT32, column)
            for column in (plan.start, plan.num_scheduled, plan.num_given, plan.position, plan.num_new_blocks)
        ]
        numbers = unpack(UINT64, plan.sequences)
        assert 0 < len(numbers) <= self.max_num_seqs
        assert len(set(numbers)) == len(numbers)
        assert sum(columns[1]) <= self.max_num_batched_tokens
        self.step_sizes.append(len(numbers))
        for number, start, num_scheduled, num_given, position, num_new in zip(numbers, *columns, strict=True):
            loaded = self.loaded[number]
            loaded.table.extend(new_blocks.popleft() for _ in range(num_new))
            given = [token_ids.popleft() for _ in range(num_given)]
            if loaded.finished:
                continue
            self._compute(loaded, start, num_scheduled, given)
            if position >= 0:
                self._sample(number, loaded, position, rows)
        assert not token_ids and not new_blocks
        self.frames.append(
            Rows(
                worker=self.name,
                epoch=self.epoch,
                step=plan.step,
                sequences=pack(UINT64, rows[0]),
                positions=pack(INT32, rows[1]),
                tokens=pack(INT32, rows[2]),
                prefix_hashes=pack(UINT32, rows[3]),
            )
        )

    def _load(self, new: NewSequence) -> None:
        assert new.sequence not in self.loaded
        table = unpack(INT32, new.block_ids)
        assert new.num_cached_tokens < new.num_tokens, "the last token is always computed"
        assert new.num_cached_tokens == len(table) * self.block_size
        last = self.slots[table[-1] * self.block_size + self.block_size - 1] if table else None
        assert last is None or last.num_tokens == new.num_cached_tokens
        assert last is not None or not table
        assert not new.sampling.has_penalties or len(new.history) == 4 * new.num_tokens
        self.loaded[new.sequence] = Loaded(
            new, table, last, Endings(new.sampling), new.num_tokens - new.num_prompt_tokens
        )

    def _compute(self, loaded: Loaded, start: int, num_scheduled: int, given: list[int]) -> None:
        assert start == (loaded.last.num_tokens if loaded.last else 0), "every token is computed once and in order"
        assert num_scheduled - len(given) in (0, 1)
        own = [loaded.own_token] if num_scheduled > len(given) else []
        assert own != [-1], "a token was neither given nor sampled here"
        for token in given + own:
            loaded.last = self.contents.after(loaded.last, token, loaded.new.cache_key)
            index = loaded.last.num_tokens - 1
            self.slots[self._slot(loaded, index)] = loaded.last
            self.num_computed_tokens += 1
        content = loaded.last
        while content is not None:
            held = self.slots[self._slot(loaded, content.num_tokens - 1)]
            assert held is content, f"token {content.num_tokens - 1} reads somebody else's KV"
            content = content.parent

    def _slot(self, loaded: Loaded, index: int) -> int:
        return loaded.table[index // self.block_size] * self.block_size + index % self.block_size

    def _sample(self, number: int, loaded: Loaded, position: int, rows: "tuple[array[int], ...]") -> None:
        assert loaded.last is not None
        assert position == loaded.num_outputs
        assert loaded.last.num_tokens == loaded.new.num_prompt_tokens + position, "sampled from the last token"
        loaded.own_token = self.rng.randrange(1, VOCAB_SIZE)
        loaded.num_outputs += 1
        loaded.finished = loaded.endings.after(loaded.own_token, loaded.num_outputs) is not None
        if number in self.withhold:
            self.withhold.discard(number)
            loaded.finished = True
            return
        self.num_rows += 1
        values = (number, position, loaded.own_token, loaded.last.prefix_hash)
        for column, value in zip(rows, values, strict=True):
            column.append(value)


def sampling(max_tokens: int, **others: object) -> Sampling:
    """Sampling parameters of a simulated request; ids below 30 end it."""
    return Sampling(**{"max_tokens": max_tokens, "eos_token_ids": tuple(range(1, 30)), **others})  # type: ignore[arg-type]
