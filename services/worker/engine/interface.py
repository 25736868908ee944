"""What the worker asks of an engine: one step over columns, the same for every device.

An engine owns the KV tensors and the sampler; it knows nothing of epochs, plans, logs or block hashes.
"""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shared.messages.pipeline import RowLogprobs
from shared.messages.sampling import Sampling


@dataclass(slots=True)
class RowSampling:
    """How one row is sampled.

    history: int32 [num_tokens] ids of prompt and outputs so far, only when sampling.has_penalties, else None;
    the first num_prompt_tokens of them are the prompt. grammar_mask: see kernels.sampling.rows.Row.
    """

    sampling: Sampling
    num_prompt_tokens: int
    history: NDArray[np.int32] | None = None
    grammar_mask: NDArray[np.uint32] | None = None


@dataclass(slots=True)
class StepInput:
    """One engine step. S sequences, T tokens, R sampled rows, B blocks of the longest table.

    token_ids: int32 [T], positions: int64 [T] (index in the sequence), slot_mapping: int64 [T]
    (block_id * block_size + offset), cu_seqlens_q: int32 [S + 1], context_lens: int32 [S] tokens in the KV cache once
    this step's are written, block_tables: int32 [S, B] padded with 0. sampled: int32 [R] indices into the S sequences,
    whose last token's logits are sampled as rows[r] says. output_positions: int32 [R] output position of each sampled
    token (0 for a sequence's first); with the row's seed it keys the random numbers.
    carried: int32 [T], for tokens that the step before samples and has not told yet: in which of its rows; -1 for those
    that are known, and None if all are. token_ids are -1 there.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    cu_seqlens_q: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    sampled: NDArray[np.int32]
    output_positions: NDArray[np.int32]
    rows: list[RowSampling]
    carried: NDArray[np.int32] | None = None

    def learn(self, tokens: NDArray[np.int32]) -> None:
        """Take in the tokens of the step before: then all are known. tokens: int32, its rows'."""
        if self.carried is not None:
            places = np.flatnonzero(self.carried >= 0)
            self.token_ids[places] = tokens[self.carried[places]]
            self.carried = None


@dataclass(slots=True)
class StepOutput:
    """tokens: int32 [R], undefined where a row failed. logprobs: empty, or one entry a row (None: not asked for).

    errors: row -> reason, rows without a token (NaN logits). failed: index of the sequence in the batch -> reason,
    sequences that were not computed at all or whose new keys and values are not finite numbers, sampled or not. Only
    these failed. spoiled_blocks: block ids of failed sequences that hold values which are not finite numbers; nobody
    may ever find them as cache.
    """

    tokens: NDArray[np.int32]
    logprobs: list[RowLogprobs | None] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    spoiled_blocks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Swaps:
    """Transfers between KV blocks and the slots of the swap space. out: int32 [n, 2], block and slot; back: int32
    [n, 2], slot and block. Those out come first; nothing is twice the destination in one of them."""

    out: NDArray[np.int32]
    back: NDArray[np.int32]


class Engine(Protocol):
    """A device with a model on it. Called from one thread at a time, never from the event loop's.

    kernels: what it computes with, and why, where that is not the best there is; for logs and health.
    num_swap_slots: of its swap space, each for a block; 0 without one.
    """

    model: str
    model_version: str
    device: str
    kernels: str
    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    num_swap_slots: int

    def warm_up(self) -> None:
        """Run every shape class once, so that the first request meets no surprise."""

    def step(self, batch: StepInput) -> StepOutput:
        """Compute the batch: write its KV, return its sampled tokens."""

    def swap(self, swaps: Swaps) -> None:
        """Move blocks out and back; a step that is called next finds all of it done."""


class Launched(Protocol):
    """A step that an engine computes."""

    def wait(self) -> None:
        """Until it is computed; from any thread."""

    def output(self) -> StepOutput:
        """What came of it, once it is waited for."""


@runtime_checkable
class PipelinedEngine(Engine, Protocol):
    """An engine that takes a step while the one before it runs: a device with a queue."""

    def launch(self, batch: StepInput) -> Launched:
        """Begin the step, after those that were begun before it. Its output may be asked for after that of the step
        before it, and before the one after the next is begun."""


class ModelEngine(Engine, Protocol):
    """An engine that computes a model, hence one that can be a rank of a group."""

    def compute_logits(self, batch: StepInput) -> object:
        """step without the sampling."""
