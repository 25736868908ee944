"""The engine on a CUDA device: torch's weights and products, our kernels for the rest, decode steps captured.

Not yet run on hardware: its kernels are compiled and run in the emulator of the tests, as its steps are.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
import torch
from torch import Tensor

from kernels.kv_blocks.swap import SwapSpace
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits as SamplingLimits
from services.worker.engine.cuda_forward import CudaForward
from services.worker.engine.cuda_memory import GIB, CacheNeeds, MemoryProfile, num_cuda_blocks
from services.worker.engine.host_slots import num_slots_in
from services.worker.engine.interface import Launched, StepInput, StepOutput, Swaps
from services.worker.engine.options import CudaEngineOptions, EngineError, resolve_max_model_len
from services.worker.engine.spoiled_blocks import find_spoiled_blocks
from services.worker.engine.warm_up import warm_up_step
from services.worker.models.cuda import Limits
from services.worker.models.parameters import Parameters
from services.worker.models.quantised import iter_weights_but_matrices, pack_projections
from services.worker.models.registry import builder_of
from services.worker.models.shards import own_config, own_weights
from services.worker.models.share import Communicator
from shared.quantization.matrix import QuantisedMatrix
from shared.repository.config import ModelConfig
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights

_BLOCKS_PER_PROCESSOR = 2  # of threads, that an attention kernel's registers and shared memory leave room for
_MOST_HISTORY_TOKENS = 16 << 20  # of a step's sequences with penalties: 64 MiB
_MOST_BIASES = 1 << 18  # of a step's sequences
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class CudaEngine:
    """A model on the current CUDA device. Called from one thread at a time."""

    kernels = "cuda"

    def __init__(
        self,
        model: str,
        model_version: str,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        options: CudaEngineOptions,
        communicator: Communicator | None = None,
        matrices: dict[str, QuantisedMatrix] | None = None,
    ) -> None:
        """weights: Hugging Face names and tensors. communicator: of the group that this rank computes the model with;
        then they are this rank's parts, while config is of the whole model. matrices: those that stay quantised, once
        all weights have come; see iter_weights_but_matrices.

        Measures a full step's memory, sizes the KV cache by it, and captures decode steps; each rank does, at the same
        time. Raises EngineError, UnknownArchitecture, WeightsError.
        """
        from kernels.cuda.device_module import DeviceLoader  # CuPy is there only where a device is

        build = builder_of(config.architecture)
        self.model = model
        self.model_version = model_version
        self.vocab_size = config.vocab_size
        self.block_size = options.block_size
        self.max_model_len = resolve_max_model_len(options.max_model_len, config)
        self._options = options
        device = torch.device("cuda", torch.cuda.current_device())
        self.device = str(device)
        self.device_uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        dtype = resolve_cuda_dtype(options.dtype, config)
        cache_dtype = torch.float8_e4m3fn if options.kv_cache_dtype == "fp8" else dtype
        free_before, total = torch.cuda.mem_get_info()
        own = own_config(config, communicator)
        on_device = ((name, tensor if tensor.is_meta else tensor.to(device)) for name, tensor in weights)
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        num_processors = torch.cuda.get_device_properties(device).multi_processor_count
        limits = Limits(
            max_num_tokens=max(options.max_num_batched_tokens, options.max_num_seqs),
            max_num_seqs=options.max_num_seqs,
            num_parallel=_BLOCKS_PER_PROCESSOR * num_processors,
        )
        per_layer = (own.num_key_value_heads, own.head_dim)

        def new_cache(num_blocks: int) -> Tensor:
            shape = (own.num_hidden_layers, 2, num_blocks, options.block_size, *per_layer)
            return torch.zeros(shape, dtype=cache_dtype, device=device)

        with explained("load the model", total):
            one_block = new_cache(1)
            decoder = build(own, Parameters(on_device, own.parameter_shapes(), dtype))
            decoder = decoder.shared(config.vocab_size, communicator)
            if matrices:
                decoder = pack_projections(decoder, matrices, dtype)
            cos_sin = torch.from_numpy(cos_sin_table(frequencies, self.max_model_len)).to(device)
            load = DeviceLoader()
            sampling_limits = SamplingLimits(
                vocab_size=config.vocab_size,
                max_rows=options.max_num_seqs,
                max_history_tokens=min(options.max_num_seqs * self.max_model_len, _MOST_HISTORY_TOKENS),
                max_biases=_MOST_BIASES,
            )
            sample = Sampling(load, torch.float32, sampling_limits, device)
            try:
                self.forward = CudaForward(decoder, own, cos_sin, one_block, limits, load, sample)
            except ValueError as error:
                raise EngineError(f"the CUDA kernels cannot run this model: {error}") from error
            profile = self._profile(total, free_before)
        needs = CacheNeeds(block_bytes=one_block.nbytes, block_size=self.block_size, max_model_len=self.max_model_len)
        self.num_blocks = num_cuda_blocks(profile, needs, options.gpu_memory_utilization, options.kv_cache_memory_bytes)
        if communicator is not None:
            self.num_blocks = communicator.smallest(self.num_blocks)
        num_ranks = 1 if communicator is None else communicator.size
        self.num_swap_slots = num_slots_in(options.swap_space, one_block, num_ranks)
        with explained("capture decode steps", total):
            self.forward.use_cache(new_cache(self.num_blocks))
            if not options.enforce_eager:
                self.forward.capture()
        if self.num_swap_slots:
            self._swap_space = SwapSpace(load, self.forward.kv_cache.flatten(0, 1), self.num_swap_slots)
        self.memory_bytes = {
            "weights": profile.weights,
            "kv_cache": self.forward.kv_cache.nbytes,
            "activations": profile.activations,
            "graphs": profile.graphs,
        }

    @classmethod
    def load(cls, model: StoredModel, options: CudaEngineOptions, communicator: Communicator | None = None) -> Self:
        """The engine for a stored model. Raises EngineError where there is no device, or too little memory."""
        if not torch.cuda.is_available():
            raise EngineError("engine cuda finds no CUDA device; --engine cpu needs none")
        config = model.config
        matrices: dict[str, QuantisedMatrix] = {}
        if config.quantization is None:
            weights = own_weights(config, iter_weights(model), communicator)
        else:
            weights = iter_weights_but_matrices(model, config.quantization, matrices, communicator)
        return cls(model.name, model.version, config, weights, options, communicator, matrices)

    def warm_up(self) -> None:
        """Computes a full prefill step, a full decode step, a single row, and one with the token of the step before;
        none of them writes anything into the cache."""
        num_rows = min(self._options.max_num_seqs, self._options.max_num_batched_tokens)
        for query_lens in (self._prompt_lens(), [1] * num_rows, [1]):
            self.step(warm_up_step(np.array(query_lens, dtype=np.int32), self.block_size))
        behind = warm_up_step(np.ones(1, dtype=np.int32), self.block_size)
        behind.carried = np.zeros(1, dtype=np.int32)
        self.step(behind)

    def step(self, batch: StepInput) -> StepOutput:
        """See Engine."""
        launched = self.launch(batch)
        launched.wait()
        return launched.output()

    def launch(self, batch: StepInput) -> Launched:
        """See PipelinedEngine."""
        return _Checked(self.forward.launch(batch), self, batch)

    def swap(self, swaps: Swaps) -> None:
        """See Engine. The device is waited for, since what it takes decides whether swapping is worth it."""
        self._swap_space.swap_out(*swaps.out.T.tolist()).wait()
        self._swap_space.swap_in(*swaps.back.T.tolist()).wait()
        torch.cuda.synchronize()

    def compute_logits(self, batch: StepInput) -> Tensor:
        """step without the sampling: float32 [R, vocabulary], on the device."""
        return self.forward.compute_logits(batch)

    def _prompt_lens(self) -> list[int]:
        return [min(self._options.max_num_batched_tokens, self.max_model_len)]

    def _profile(self, total: int, free_before: int) -> MemoryProfile:
        """Of the memory that weights, the largest steps and captured ones take. Launches every kernel once, too: what
        is loaded at a first launch must be there before the cache takes the rest."""
        weights = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.warm_up()
        torch.cuda.synchronize()
        activations = torch.cuda.max_memory_allocated() - weights
        graphs = 0 if self._options.enforce_eager else self.forward.graph_bytes()
        free, _ = torch.cuda.mem_get_info()
        outside = max(0, free_before - free - torch.cuda.memory_reserved())  # the context, modules, libraries
        return MemoryProfile(total, total - free_before, weights + outside, activations, graphs)


class _Checked:
    """A step that looks for spoiled blocks if a sequence failed in it."""

    def __init__(self, launched: Launched, engine: CudaEngine, batch: StepInput) -> None:
        self.wait = launched.wait
        self._launched = launched
        self._engine = engine
        self._batch = batch

    def output(self) -> StepOutput:
        """See Launched."""
        output = self._launched.output()
        if output.errors or output.failed:
            engine = self._engine
            output.spoiled_blocks = find_spoiled_blocks(engine.forward.kv_cache, engine.block_size, self._batch, output)
        return output


def resolve_cuda_dtype(option: str, config: ModelConfig) -> torch.dtype:
    """The dtype of weights and activations; auto: the model's own, bfloat16 for a float32 one. Raises EngineError."""
    if option == "auto":
        return _DTYPES.get(config.torch_dtype, torch.bfloat16)
    if option not in _DTYPES:
        raise EngineError(f"dtype {option!r} is not for engine cuda, which computes in auto, {' or '.join(_DTYPES)}")
    return _DTYPES[option]


@contextmanager
def explained(task: str, total: int) -> Iterator[None]:
    """Raises EngineError with the numbers where the device has no memory for the task. total: bytes of the device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, _ = torch.cuda.mem_get_info()
        raise EngineError(
            f"not enough memory to {task}: of {total / GIB:.2f} GiB {torch.cuda.memory_allocated() / GIB:.2f} GiB are "
            f"allocated and {free / GIB:.2f} GiB free. Lower max_num_seqs, max_num_batched_tokens or "
            f"gpu_memory_utilization, or set enforce_eager ({error})"
        ) from error
