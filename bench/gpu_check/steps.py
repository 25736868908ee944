"""Sequences on an engine without scheduler and worker: a prompt's step, then one token of each sequence a step."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.interface import Launched, RowSampling, StepInput
from shared.messages.sampling import Sampling

UNKNOWN = -1


class Launches(Protocol):
    """See PipelinedEngine."""

    def launch(self, batch: StepInput) -> Launched: ...


class Sequences:
    """Each in KV blocks of its own, next to each other. token_ids: prompts and what was added to them."""

    def __init__(self, prompts: list[list[int]], max_len: int, block_size: int) -> None:
        self.token_ids = [list(prompt) for prompt in prompts]
        self._num_computed = [0] * len(prompts)
        self._num_unknown = 0  # the last ones of each
        self._block_size = block_size
        blocks_each = -(-max_len // block_size)
        self._tables = np.arange(len(prompts) * blocks_each, dtype=np.int32).reshape(len(prompts), blocks_each)
        # One list for all decode steps: an engine then knows that nothing about its rows is new.
        self._rows = [RowSampling(Sampling(max_tokens=max_len, temperature=0.0), num_prompt_tokens=1)] * len(prompts)

    @property
    def num_blocks(self) -> int:
        """Of the engine's, that they need."""
        return int(self._tables.size)

    def prompt_steps(self, max_num_tokens: int) -> list[StepInput]:
        """Of all prompts, each whole, as many together as the budget allows; each samples the tokens behind its own."""
        steps, first = [], 0
        while first < len(self.token_ids):
            last, num_tokens = first + 1, len(self.token_ids[first])
            while last < len(self.token_ids) and num_tokens + len(self.token_ids[last]) <= max_num_tokens:
                num_tokens += len(self.token_ids[last])
                last += 1
            steps.append(self._step(range(first, last)))
            first = last
        return steps

    def decode_step(self) -> StepInput:
        """The newest token of each."""
        return self._step(range(len(self.token_ids)))

    def step_ahead(self) -> StepInput:
        """Of tokens that the decode step before samples; to be launched behind it."""
        for token_ids in self.token_ids:
            token_ids.append(UNKNOWN)
        self._num_unknown += 1
        step = self.decode_step()
        step.carried = np.arange(len(self.token_ids), dtype=np.int32)
        return step

    def add(self, tokens: list[int]) -> None:
        """What was sampled of each."""
        for token_ids, token in zip(self.token_ids, tokens, strict=True):
            if self._num_unknown:
                token_ids[-self._num_unknown] = token
            else:
                token_ids.append(token)
        self._num_unknown = max(0, self._num_unknown - 1)

    def _step(self, indices: range) -> StepInput:
        token_ids: list[int] = []
        positions: list[NDArray[np.int64]] = []
        slots: list[NDArray[np.int64]] = []
        lens: list[int] = []
        for index in indices:
            begin, end = self._num_computed[index], len(self.token_ids[index])
            token_ids += self.token_ids[index][begin:end]
            places = np.arange(begin, end, dtype=np.int64)
            positions.append(places)
            blocks = self._tables[index, places // self._block_size].astype(np.int64)
            slots.append(blocks * self._block_size + places % self._block_size)
            lens.append(end - begin)
            self._num_computed[index] = end
        context_lens = np.array([len(self.token_ids[index]) for index in indices], dtype=np.int32)
        num_columns = -(-int(context_lens.max()) // self._block_size)
        return StepInput(
            token_ids=np.array(token_ids, dtype=np.int32),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots),
            cu_seqlens_q=np.cumsum([0, *lens]).astype(np.int32),
            context_lens=context_lens,
            block_tables=self._tables[indices.start : indices.stop, :num_columns].copy(),
            sampled=np.arange(len(indices), dtype=np.int32),
            output_positions=np.zeros(len(indices), dtype=np.int32),
            rows=self._rows if len(indices) == len(self._rows) else self._rows[: len(indices)],
        )


def decode(engine: Launches, sequences: Sequences, num_steps: int) -> Iterator[NDArray[np.int32]]:
    """The tokens of each step; each is launched before the one before it has ended, as the worker does it."""
    running = engine.launch(sequences.decode_step())
    for step in range(1, num_steps + 1):
        behind = engine.launch(sequences.step_ahead()) if step < num_steps else None
        running.wait()
        tokens = running.output().tokens
        sequences.add(tokens.tolist())
        yield tokens
        if behind is not None:
            running = behind


def random_prompts(count: int, num_tokens: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """The same every time."""
    ids = np.random.default_rng(seed).integers(0, vocab_size, (count, num_tokens))
    return [list(map(int, row)) for row in ids]
