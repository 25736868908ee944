"""A step on a device: columns in, one computation or one replay, sampled tokens out."""

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels
from kernels.sampling.cuda import Sampling
from kernels.sampling.rows import NOT_FINITE
from services.worker.engine.cuda_buffers import HeadCounts, StepBuffers
from services.worker.engine.cuda_graphs import DecodeGraphs, is_plain_decode, ladder
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.reports import to_messages
from services.worker.engine.warm_up import warm_up_step
from services.worker.models.cuda import CudaDecoder, Limits, StepTensors
from services.worker.models.decoder import Decoder
from shared.repository.config import ModelConfig


class CudaStep:
    """See Launched. Of two that take turns; each has buffers of its own for what comes back."""

    def __init__(self, sample: Sampling, max_num_tokens: int, device: torch.device) -> None:
        self.sample = sample
        is_device = device.type == "cuda"
        self._is_finite = torch.ones(max_num_tokens, dtype=torch.bool, pin_memory=is_device)
        # Its wait sleeps: a thread that spins would keep the host from what it does meanwhile.
        self._end = torch.cuda.Event(blocking=True) if is_device else None  # type: ignore[no-untyped-call]
        self._batch: StepInput | None = None

    def begin(self, batch: StepInput, logits: Tensor, is_finite: Tensor) -> None:
        """Sample, and fetch what came of it."""
        self._batch = batch
        self.sample.stage(batch.rows, batch.output_positions)
        self.sample.launch(logits)
        self.sample.fetch()
        self._is_finite[: len(is_finite)].copy_(is_finite, non_blocking=True)
        if self._end is not None:
            self._end.record()

    def wait(self) -> None:
        """See Launched."""
        if self._end is not None:
            self._end.synchronize()

    def output(self) -> StepOutput:
        """See Launched."""
        batch, self._batch = self._batch, None
        if batch is None:
            raise ValueError("the step's output was taken already")
        sampled = self.sample.read()
        output = StepOutput(sampled.tokens, to_messages(sampled.logprobs), sampled.errors)
        is_finite = self._is_finite[: len(batch.token_ids)].numpy()
        if not is_finite.all():
            sequences = np.searchsorted(batch.cu_seqlens_q, np.flatnonzero(~is_finite), side="right") - 1
            output.failed = dict.fromkeys(sequences.tolist(), NOT_FINITE)
        return output


class CudaForward:
    """See Forward. kv_cache: [layers, 2, num_blocks, block_size, K, D]."""

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        cos_sin: Tensor,
        kv_cache: Tensor,
        limits: Limits,
        load: LoadKernels,
        sample: Sampling,
    ) -> None:
        """decoder, cos_sin, kv_cache: on the device. sample: of float32 logits.

        Raises ValueError for a shape that has no kernel.
        """
        self.kernels = "cuda"
        self.kv_cache = kv_cache
        self._limits = limits
        block_size, device = kv_cache.shape[3], kv_cache.device
        self._newest, self._next = (CudaStep(each, limits.max_num_tokens, device) for each in (sample, sample.twin()))
        self._block_size = block_size
        heads = HeadCounts(config.num_attention_heads, config.num_key_value_heads, frozenset(decoder.windows()))
        self._decoder = CudaDecoder(decoder, cos_sin, kv_cache.dtype, block_size, limits, load)
        self._buffers = StepBuffers(heads, limits, -(-len(cos_sin) // block_size), device)
        self._graphs = DecodeGraphs(self._compute, ladder(limits.max_num_seqs))

    def use_cache(self, kv_cache: Tensor) -> None:
        """Another cache of the same shape but for the number of blocks; before capture."""
        self.kv_cache = kv_cache

    def graph_bytes(self) -> int:
        """What captured decode steps will keep of the device's memory."""
        return self._graphs.measure(self._idle_columns)

    def capture(self) -> None:
        """Captures decode steps of all sizes; on a CUDA device alone."""
        for _ in self._graphs.capture_all(self._idle_columns):
            pass

    def run(self, batch: StepInput) -> StepOutput:
        """See Forward."""
        launched = self.launch(batch)
        launched.wait()
        return launched.output()

    def launch(self, batch: StepInput) -> CudaStep:
        """Begin a step, also if the one before it has not told its output; that of the one before that is taken."""
        logits, is_finite = self._step(batch)
        launched = self._next
        launched.begin(batch, logits, is_finite)
        self._newest, self._next = launched, self._newest
        return launched

    def compute_logits(self, batch: StepInput) -> Tensor:
        """See Forward."""
        return self._step(batch)[0].clone()

    def _step(self, batch: StepInput) -> tuple[Tensor, Tensor]:
        """Logits of the batch's rows, and whether its tokens are finite."""
        size = self._graphs.size_for(len(batch.context_lens)) if is_plain_decode(batch) else None
        tokens, share = self._newest.sample.tokens, self._decoder.decoder.share
        if batch.carried is not None and share is not None:
            share.communicator.hand_out(tokens)  # rank 0 alone samples
        columns = self._buffers.load(batch, size, tokens)
        logits, is_finite = self._compute(columns) if size is None else self._graphs.replay(size)
        return logits[: len(batch.sampled)], is_finite[: len(batch.token_ids)]

    def _compute(self, columns: StepTensors) -> tuple[Tensor, Tensor]:
        return self._decoder(columns, self.kv_cache)

    def _idle_columns(self, size: int) -> StepTensors:
        """Of a step of so many sequences of one token, whose keys and values go nowhere."""
        batch = warm_up_step(np.ones(size, dtype=np.int32), self._block_size)
        return self._buffers.load(batch, size)
