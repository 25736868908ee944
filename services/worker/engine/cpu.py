"""The engine on a CPU: one step at a time, in C++ kernels or, where those cannot, in torch."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from kernels.decoder.model import Shape
from kernels.native.build import AroundBuild
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from services.worker.engine.forward import Forward
from services.worker.engine.host_slots import HostSlots, check_swap_space, num_slots_in
from services.worker.engine.interface import StepInput, StepOutput, Swaps
from services.worker.engine.kernel_choice import choose_kernels
from services.worker.engine.memory import available_memory_bytes, claim_first_blocks, num_kv_blocks
from services.worker.engine.native_forward import NativeForward
from services.worker.engine.options import EngineOptions, resolve_max_model_len
from services.worker.engine.quantization import packer_for
from services.worker.engine.spoiled_blocks import find_spoiled_blocks
from services.worker.engine.torch_forward import TorchForward
from services.worker.engine.warm_up import warm_up_step
from services.worker.models.native import build_native, padded_inner_size
from services.worker.models.packers import Bf16Packer, Packer
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from services.worker.models.shards import own_config, own_weights
from services.worker.models.share import Communicator
from shared.repository.config import ModelConfig
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights


class CpuEngine:
    """A model in memory with its KV cache. Called from one thread at a time.

    Stale contents of the KV cache, NaN included, are never read beyond a sequence's own tokens, so the blocks of a
    sequence that came out as NaN need no cleaning: whoever gets them writes before it reads. Only as cache they must
    never be found: its sequence fails in the very step that computes the first NaN, before any of the blocks has a
    name. forward: what computes; fallback_reason: why that is torch, if it is.
    """

    device = "cpu"

    def __init__(
        self,
        model: str,
        model_version: str,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        options: EngineOptions,
        packer: Packer | None = None,
        around_build: AroundBuild = nullcontext,
        communicator: Communicator | None = None,
    ) -> None:
        """weights: Hugging Face names and tensors. packer: of the weights for the C++ kernels, None for bfloat16.
        around_build: of these kernels, should they have to be built. communicator: of the group that this rank computes
        the model with; torch does so, and kv_cache_memory_bytes is of each rank.

        Raises EngineError, UnknownArchitecture, WeightsError.
        """
        if options.num_threads > 0:
            torch.set_num_threads(options.num_threads)
        build = builder_of(config.architecture)
        self.model = model
        self.model_version = model_version
        self.vocab_size = config.vocab_size
        self.block_size = options.block_size
        self.max_model_len = resolve_max_model_len(options.max_model_len, config)
        own, num_ranks = own_config(config, communicator), 1 if communicator is None else communicator.size
        shape = _native_shape(own, options)
        problem = shape.problem() if num_ranks == 1 else f"tensor_parallel_size is {num_ranks}"
        choice = choose_kernels(config, options, problem, around_build)
        self.dtype, self.fallback_reason = choice.dtype, choice.fallback_reason
        check_swap_space(options.swap_space, available_memory_bytes())
        available = available_memory_bytes() // num_ranks
        self.num_blocks = num_kv_blocks(own, options, self.max_model_len, self.dtype.itemsize, available)
        if communicator is not None:
            self.num_blocks = communicator.smallest(self.num_blocks)
        self._max_num_seqs = options.max_num_seqs
        self._max_num_batched_tokens = options.max_num_batched_tokens
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        cos_sin = torch.from_numpy(cos_sin_table(frequencies, self.max_model_len))
        parameters = Parameters(own_weights(config, weights, communicator), own.parameter_shapes(), self.dtype)
        decoder = build(own, parameters).shared(config.vocab_size, communicator)
        self.forward: Forward
        if choice.library is None:
            self.forward = TorchForward(decoder, own, cos_sin, self.dtype, self.num_blocks, self.block_size)
        else:
            shape, num_threads = replace(shape, num_blocks=self.num_blocks), torch.get_num_threads()
            self.forward = NativeForward(
                build_native(decoder, shape, cos_sin, packer or Bf16Packer(), num_threads, choice.library)
            )
        self.num_swap_slots = num_slots_in(options.swap_space, self.forward.kv_cache, num_ranks)
        self._host_slots = HostSlots(self.forward.kv_cache, self.num_swap_slots)
        reason = self.fallback_reason
        self.kernels = self.forward.kernels if reason is None else f"{self.forward.kernels}: {reason}"

    @classmethod
    def load(
        cls,
        model: StoredModel,
        options: EngineOptions,
        around_build: AroundBuild = nullcontext,
        communicator: Communicator | None = None,
    ) -> Self:
        """The engine for a stored model. Raises EngineError with the numbers where its memory does not suffice."""
        weights, packer = iter_weights(model), packer_for(model, options)
        return cls(model.name, model.version, model.config, weights, options, packer, around_build, communicator)

    def warm_up(self) -> None:
        """Claims memory for the cache, and computes a full prefill step, a full decode step and a single row, which
        write nothing into it."""
        claim_first_blocks(self.forward.kv_cache)
        num_tokens = min(self._max_num_batched_tokens, self.max_model_len)
        num_rows = min(self._max_num_seqs, self._max_num_batched_tokens)
        for query_lens in ([num_tokens], [1] * num_rows, [1]):
            self.step(warm_up_step(np.array(query_lens, dtype=np.int32), self.block_size))

    def step(self, batch: StepInput) -> StepOutput:
        """Computes all tokens of the batch, writes their KV, samples the rows asked for.

        Raises IndexError on a position, slot or block beyond the engine's; a sequence whose values are not finite
        numbers fails alone.
        """
        output = self.forward.run(batch)
        if output.errors or output.failed:
            output.spoiled_blocks = find_spoiled_blocks(self.forward.kv_cache, self.block_size, batch, output)
        return output

    def swap(self, swaps: Swaps) -> None:
        """See Engine."""
        self._host_slots.swap(swaps)

    def compute_logits(self, batch: StepInput) -> Tensor:
        """step without the sampling: writes the KV of all tokens, returns float32 [R, vocabulary] for the rows."""
        return self.forward.compute_logits(batch)


def _native_shape(config: ModelConfig, options: EngineOptions) -> Shape:
    """For the C++ kernels, without num_blocks."""
    return Shape(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        inner_size=padded_inner_size(config.intermediate_size),
        vocab_size=config.vocab_size,
        eps=config.rms_norm_eps,
        block_size=options.block_size,
        num_blocks=0,
        max_num_tokens=max(options.max_num_batched_tokens, options.max_num_seqs),
        max_num_seqs=options.max_num_seqs,
    )
