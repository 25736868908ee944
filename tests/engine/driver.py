"""Runs sequences on an engine without scheduler and worker: just enough of both to build steps.

Every step holds up to max_num_batched_tokens tokens, decode and prefill mixed, at most chunk of them from one sequence.
With prefix caching full blocks are kept by content after their sequence ends, and found again by later ones.
"""

from dataclasses import dataclass, field

import numpy as np

from services.worker.engine.interface import Engine, RowSampling, StepInput
from shared.messages.pipeline import RowLogprobs
from shared.messages.sampling import Sampling


@dataclass
class Sequence:
    """A prompt and what was generated for it."""

    prompt: list[int]
    sampling: Sampling
    outputs: list[int] = field(default_factory=list)
    logprobs: list[RowLogprobs | None] = field(default_factory=list)
    error: str = ""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return self.prompt + self.outputs

    @property
    def is_finished(self) -> bool:
        return bool(self.error) or len(self.outputs) >= self.sampling.max_tokens


def greedy(max_tokens: int, **others: object) -> Sampling:
    """The likeliest token each time."""
    return Sampling(max_tokens=max_tokens, temperature=0.0, **others)  # type: ignore[arg-type]


class Driver:
    """Sequences in KV blocks of one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        chunk: int = 512,
        max_num_batched_tokens: int = 512,
        prefix_caching: bool = False,
    ) -> None:
        self.engine = engine
        self.chunk = chunk
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefix_caching = prefix_caching
        self.running: list[Sequence] = []
        self.num_steps = 0
        self._free = list(range(engine.num_blocks))
        self._cached: dict[tuple[int, ...], int] = {}
        self._users: dict[int, int] = {}

    def add(self, prompt: list[int], sampling: Sampling) -> Sequence:
        """A sequence that the next steps compute."""
        sequence = Sequence(prompt, sampling)
        self.running.append(sequence)
        self._find_prefix(sequence)
        return sequence

    def preempt(self, sequence: Sequence) -> None:
        """Take the sequence's blocks away; it is computed anew from its tokens."""
        self._release(sequence)
        sequence.num_computed_tokens = 0
        self._find_prefix(sequence)

    def run(self) -> None:
        """Steps until every sequence is finished."""
        while self.running:
            self.step()

    def step(self) -> None:
        """One engine step over as many running sequences as the budget allows."""
        scheduled = self._schedule()
        batch, sampled = self._build(scheduled)
        output = self.engine.step(batch)
        self.num_steps += 1
        for sequence, count in scheduled:
            sequence.num_computed_tokens += count
            self._remember(sequence)
        for row, sequence in enumerate(sampled):
            if row in output.errors:
                sequence.error = output.errors[row]
            else:
                sequence.outputs.append(int(output.tokens[row]))
                sequence.logprobs.append(output.logprobs[row] if output.logprobs else None)
            if sequence.is_finished:
                self._release(sequence)
                self.running.remove(sequence)

    def _schedule(self) -> list[tuple[Sequence, int]]:
        budget = self.max_num_batched_tokens
        scheduled = []
        for sequence in self.running:
            count = min(budget, self.chunk, len(sequence.token_ids) - sequence.num_computed_tokens)
            if count > 0:
                budget -= count
                scheduled.append((sequence, count))
        return scheduled

    def _build(self, scheduled: list[tuple[Sequence, int]]) -> tuple[StepInput, list[Sequence]]:
        size = self.engine.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[RowSampling] = []
        output_positions: list[int] = []
        sampled: list[int] = []
        for index, (sequence, count) in enumerate(scheduled):
            first, last = sequence.num_computed_tokens, sequence.num_computed_tokens + count
            while len(sequence.block_table) * size < last:
                sequence.block_table.append(self._take_block())
            token_ids += sequence.token_ids[first:last]
            positions += range(first, last)
            slots += [sequence.block_table[p // size] * size + p % size for p in range(first, last)]
            if last == len(sequence.token_ids):
                sampled.append(index)
                history = np.array(sequence.token_ids, dtype=np.int32) if sequence.sampling.has_penalties else None
                rows.append(RowSampling(sequence.sampling, len(sequence.prompt), history))
                output_positions.append(len(sequence.outputs))
        tables = np.zeros((len(scheduled), max(len(s.block_table) for s, _ in scheduled)), dtype=np.int32)
        for index, (sequence, _) in enumerate(scheduled):
            tables[index, : len(sequence.block_table)] = sequence.block_table
        batch = StepInput(
            token_ids=np.array(token_ids, dtype=np.int32),
            positions=np.array(positions, dtype=np.int64),
            slot_mapping=np.array(slots, dtype=np.int64),
            cu_seqlens_q=np.cumsum([0] + [count for _, count in scheduled]).astype(np.int32),
            context_lens=np.array([s.num_computed_tokens + count for s, count in scheduled], dtype=np.int32),
            block_tables=tables,
            sampled=np.array(sampled, dtype=np.int32),
            output_positions=np.array(output_positions, dtype=np.int32),
            rows=rows,
        )
        return batch, [scheduled[index][0] for index in sampled]

    def _find_prefix(self, sequence: Sequence) -> None:
        """Share the blocks that hold the sequence's first tokens; the last token is always computed."""
        size, ids = self.engine.block_size, sequence.token_ids
        while self.prefix_caching:
            num_tokens = (len(sequence.block_table) + 1) * size
            block = self._cached.get(tuple(ids[:num_tokens]))
            if num_tokens >= len(ids) or block is None:
                break
            self._users[block] = self._users.get(block, 0) + 1
            if block in self._free:
                self._free.remove(block)
            sequence.block_table.append(block)
        sequence.num_cached_tokens = sequence.num_computed_tokens = len(sequence.block_table) * size

    def _remember(self, sequence: Sequence) -> None:
        """Full blocks can be found by their contents from now on."""
        size = self.engine.block_size
        for index in range(sequence.num_computed_tokens // size if self.prefix_caching else 0):
            self._cached.setdefault(tuple(sequence.token_ids[: (index + 1) * size]), sequence.block_table[index])

    def _take_block(self) -> int:
        block = self._free.pop(0)
        for contents in [c for c, cached in self._cached.items() if cached == block]:
            del self._cached[contents]
        self._users[block] = 1
        return block

    def _release(self, sequence: Sequence) -> None:
        for block in sequence.block_table:
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free.append(block)
        sequence.block_table = []


def generate(
    engine: Engine, prompts: list[list[int]], sampling: Sampling, *, alone: bool = False, **options: int | bool
) -> list[list[int]]:
    """Output ids of each prompt, all at once or one after the other."""
    driver = Driver(engine, **options)  # type: ignore[arg-type]
    sequences = []
    for prompt in prompts:
        sequences.append(driver.add(prompt, sampling))
        if alone:
            driver.run()
    driver.run()
    return [sequence.outputs for sequence in sequences]
