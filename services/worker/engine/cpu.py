"""The engine on a CPU: torch for matrix products and attention, one step at a time."""

import math
from collections.abc import Iterable
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paged_attention.plan import plan_attention
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.sampling.cpu import sample
from kernels.sampling.rows import NOT_FINITE, TokenLogprobs
from services.worker.engine.interface import RowSampling, StepInput, StepOutput
from services.worker.engine.memory import available_memory_bytes, num_kv_blocks
from services.worker.engine.options import EngineOptions, resolve_dtype, resolve_max_model_len
from services.worker.models.layers import StepContext
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from shared.messages.pipeline import RowLogprobs
from shared.messages.sampling import Sampling
from shared.repository.config import ModelConfig
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights


class CpuEngine:
    """A model in memory with its KV cache. Called from one thread at a time.

    kv_cache: [layers, 2, num_blocks, block_size, K, D], keys then values. Its memory is claimed at start but touched
    only as blocks are written. Stale contents, NaN included, are never read beyond a sequence's own tokens, so the
    blocks of a sequence that came out as NaN need no cleaning: whoever gets them writes before it reads. Only as cache
    they must never be found: its sequence fails in the very step that computes the first NaN, before any of the blocks
    has a name.
    """

    device = "cpu"

    def __init__(
        self,
        model: str,
        model_version: str,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        options: EngineOptions,
    ) -> None:
        """weights: Hugging Face names and tensors. Raises EngineError, UnknownArchitecture, WeightsError."""
        if options.num_threads > 0:
            torch.set_num_threads(options.num_threads)
        build = builder_of(config.architecture)
        self.model = model
        self.model_version = model_version
        self.dtype = resolve_dtype(options.dtype, config)
        self.vocab_size = config.vocab_size
        self.block_size = options.block_size
        self.max_model_len = resolve_max_model_len(options.max_model_len, config)
        self.num_blocks = num_kv_blocks(
            config, options, self.max_model_len, self.dtype.itemsize, available_memory_bytes()
        )
        self._max_num_seqs = options.max_num_seqs
        self._max_num_batched_tokens = options.max_num_batched_tokens
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._cos_sin = torch.from_numpy(cos_sin_table(frequencies, self.max_model_len))
        self._decoder = build(config, Parameters(weights, config.parameter_shapes(), self.dtype))
        self._kv_cache = torch.empty(
            (
                config.num_hidden_layers,
                2,
                self.num_blocks,
                self.block_size,
                config.num_key_value_heads,
                config.head_dim,
            ),
            dtype=self.dtype,
        )

    @classmethod
    def load(cls, model: StoredModel, options: EngineOptions) -> Self:
        """The engine for a stored model. Raises EngineError with the numbers where its memory does not suffice."""
        return cls(model.name, model.version, model.config, iter_weights(model), options)

    def warm_up(self) -> None:
        """A full prefill step, a full decode step and a single row; nothing is written into the cache."""
        num_tokens = min(self._max_num_batched_tokens, self.max_model_len)
        num_rows = min(self._max_num_seqs, self._max_num_batched_tokens)
        for query_lens in ([num_tokens], [1] * num_rows, [1]):
            self.step(_warm_up_step(np.array(query_lens, dtype=np.int32), self.block_size))

    @torch.inference_mode()
    def step(self, batch: StepInput) -> StepOutput:
        """Computes all tokens of the batch, writes their KV, samples the rows asked for.

        Raises IndexError on a position, slot or block beyond the engine's; a sequence whose values are not finite
        numbers fails alone.
        """
        logits, residual = self._compute(batch)
        sampled = sample(logits, batch.rows)
        logprobs = [None if report is None else _to_message(report) for report in sampled.logprobs]
        output = StepOutput(
            tokens=sampled.tokens,
            logprobs=logprobs if any(logprobs) else [],
            errors=sampled.errors,
        )
        if len(batch.token_ids) > len(batch.sampled):  # else every token has a row of logits, which tells
            output.failed = _not_finite(residual, batch.cu_seqlens_q)
        if output.errors or output.failed:
            output.spoiled_blocks = self._spoiled_blocks(batch, output)
        return output

    @torch.inference_mode()
    def compute_logits(self, batch: StepInput) -> Tensor:
        """step without the sampling: writes the KV of all tokens, returns float32 [R, vocabulary] for the rows."""
        return self._compute(batch)[0]

    def _compute(self, batch: StepInput) -> tuple[Tensor, Tensor]:
        """Logits of the rows and residual of all tokens; see Decoder."""
        plans = {
            window: plan_attention(
                batch.cu_seqlens_q, batch.context_lens, batch.block_tables, self.block_size, self.dtype, window
            )
            for window in self._decoder.windows()
        }
        context = StepContext(
            cos_sin=self._cos_sin[torch.from_numpy(batch.positions)],
            slot_mapping=torch.from_numpy(batch.slot_mapping),
            plans=plans,
        )
        last_tokens = batch.cu_seqlens_q[1:].astype(np.int64) - 1
        return self._decoder(
            torch.from_numpy(batch.token_ids.astype(np.int64)),
            context,
            self._kv_cache,
            torch.from_numpy(last_tokens[batch.sampled]),
        )

    def _spoiled_blocks(self, batch: StepInput, output: StepOutput) -> list[int]:
        """Of the blocks of failed sequences those with values that are not finite, whoever wrote them."""
        failed = {*output.failed, *(int(batch.sampled[row]) for row in output.errors)}
        used = -(-batch.context_lens // self.block_size)
        blocks = sorted({block for index in failed for block in batch.block_tables[index, : used[index]].tolist()})
        finite = torch.isfinite(self._kv_cache[:, :, torch.tensor(blocks)]).all(dim=5).all(dim=4).all(dim=3)
        return [block for block, is_finite in zip(blocks, finite.all(dim=1).all(dim=0), strict=True) if not is_finite]


def _warm_up_step(query_lens: NDArray[np.int32], block_size: int) -> StepInput:
    """Sequences of new tokens only, whose keys and values go nowhere; what comes out means nothing."""
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in query_lens])
    num_sequences, num_blocks = len(query_lens), math.ceil(query_lens.max() / block_size)
    sampling = Sampling(max_tokens=1, temperature=1.0, top_p=0.9)
    return StepInput(
        token_ids=np.zeros(len(positions), dtype=np.int32),
        positions=positions,
        slot_mapping=np.full(len(positions), -1, dtype=np.int64),
        cu_seqlens_q=np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32),
        context_lens=query_lens,
        block_tables=np.zeros((num_sequences, num_blocks), dtype=np.int32),
        sampled=np.arange(num_sequences, dtype=np.int32),
        rows=[RowSampling(sampling=sampling, position=0, num_prompt_tokens=1) for _ in range(num_sequences)],
    )


def _not_finite(residual: Tensor, cu_seqlens_q: NDArray[np.int32]) -> dict[int, str]:
    """Sequences with a token whose values are not finite; residual: float32 [T, hidden size]."""
    tokens = torch.isfinite(residual.sum(dim=1)).logical_not().nonzero().squeeze(1).numpy()
    sequences = np.searchsorted(cu_seqlens_q, tokens, side="right") - 1
    return dict.fromkeys(sequences.tolist(), NOT_FINITE)


def _to_message(report: TokenLogprobs) -> RowLogprobs:
    return RowLogprobs(report.logprob, report.rank, report.top_ids, report.top_logprobs)
