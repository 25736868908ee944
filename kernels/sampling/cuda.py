"""Sampling on a device: from logits where they lie to a token a row."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name
from kernels.sampling.cuda_rows import Limits, News, StagedRows
from kernels.sampling.rows import Row, Sampled, TokenLogprobs, num_mask_words
from kernels.sampling.status import RowStatus, reason_of

SOURCE = Path(__file__).with_name("kernel.cu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_THREADS = 512


def instance(dtype: torch.dtype) -> str:
    """Of the kernel, for logits of this dtype."""
    return f"tokenbus::sample_rows<{c_name(dtype)}>"


class Sampling:
    """For logits of one dtype: float32, bfloat16 or float16. Raises ValueError for another one.

    A step is stage, launch and collect, in this order; launch alone can be part of a graph. Who has better to do than
    wait calls fetch, and once the device has come to it, read in collect's place. The device holds, beside what the
    limits say, 4 bytes for each token of the vocabulary and row: what bias and penalties make of logits.
    tokens: int32 [max_rows] on the device, the last launch's, for whoever needs them there.
    """

    def __init__(
        self, load: LoadKernels, dtype: torch.dtype, limits: Limits, device: torch.device | str = "cpu"
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"logits of {dtype}")
        self.limits = limits
        self._dtype = dtype
        self._instance = instance(dtype)
        self.module = load(SOURCE, [self._instance])
        self._device = torch.device(device)
        self._shared_bytes = 8 * limits.max_top + 4 * num_mask_words(limits.vocab_size)
        self.cells = torch.empty((limits.max_rows, limits.vocab_size), dtype=torch.int32, device=self._device)
        self._allocate()

    def twin(self) -> "Sampling":
        """Another one, whose step may be staged and launched while nobody has read this one's."""
        twin = copy(self)
        twin._allocate()
        return twin

    def _allocate(self) -> None:
        """All that a step has of its own; scratch serves one launch after the other."""
        limits, device = self.limits, self._device
        is_device = device.type == "cuda"
        self._staged = StagedRows(limits, is_pinned=is_device)
        self._num_rows = 0

        def like(host: Tensor) -> Tensor:
            return torch.empty_like(host, device=device, pin_memory=False)

        self._rows, self._masks = like(self._staged.rows), like(self._staged.masks)
        self._histories = like(self._staged.histories)
        self._biased, self._biases = like(self._staged.biased), like(self._staged.biases)
        # tokens, statuses, log-probabilities, ranks; the likeliest tokens, their log-probabilities: each one copy
        self._results = torch.zeros((4, limits.max_rows), dtype=torch.int32, device=device)
        self._top = torch.zeros((2, limits.max_rows, limits.max_top), dtype=torch.int32, device=device)
        self._results_here = torch.zeros_like(self._results, device="cpu", pin_memory=is_device)
        self._top_here = torch.zeros_like(self._top, device="cpu", pin_memory=is_device)
        self.tokens = self._results[0]

    def __call__(self, logits: Tensor, rows: Sequence[Row], positions: NDArray[np.int32]) -> Sampled:
        """A step; see stage, launch and collect."""
        self.stage(rows, positions)
        self.launch(logits)
        return self.collect()

    def stage(self, rows: Sequence[Row], positions: NDArray[np.int32]) -> None:
        """Begins to copy what the device does not know yet of these rows at these output positions, int32 [rows].

        Nothing but histories and grammar masks may change in a list of rows that was staged before. Only after collect
        or read, if there was a launch: until then the host's buffers are being read. Raises ValueError for histories
        and masks of another type, and for too many rows.
        """
        news = self._staged.stage(rows, positions)
        self._num_rows = len(rows)
        self._copy(news)

    def _copy(self, news: News) -> None:
        staged = self._staged
        for to, here, count in (
            (self._rows, staged.rows, news.rows),
            (self._masks, staged.masks, news.masks),
            (self._histories, staged.histories, news.history_tokens),
            (self._biased, staged.biased, news.biases),
            (self._biases, staged.biases, news.biases),
        ):
            if count:
                to[:count].copy_(here[:count], non_blocking=True)

    def launch(self, logits: Tensor) -> None:
        """Samples the staged rows. logits: dtype [at least as many, vocab_size], the last stride 1; best with rows that
        begin at multiples of 16 bytes. Not written. Raises ValueError for others."""
        vocab_size = self.limits.vocab_size
        if logits.dtype != self._dtype or logits.dim() != 2 or logits.shape[1] != vocab_size:
            raise ValueError(f"logits {tuple(logits.shape)} of {logits.dtype} for a vocabulary of {vocab_size}")
        if not self._num_rows:
            return
        if len(logits) < self._num_rows or logits.stride(1) != 1:
            raise ValueError(f"logits {tuple(logits.shape)} for {self._num_rows} rows, or with gaps")
        tokens, statuses, logprobs, ranks = self._results
        arguments = (
            logits,
            np.int64(logits.stride(0)),
            np.int32(vocab_size),
            self._rows,
            self._masks,
            self._histories,
            self._biased,
            self._biases,
            self.cells,
            tokens,
            statuses,
            logprobs.view(torch.float32),
            ranks,
            self._top[0],
            self._top[1].view(torch.float32),
            np.int32(self.limits.max_top),
        )
        self.module.launch(self._instance, (self._num_rows, 1, 1), (_THREADS, 1, 1), arguments, self._shared_bytes)

    def collect(self) -> Sampled:
        """Waits for what was launched. A row fails alone, as on the CPU."""
        self.fetch()
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return self.read()

    def fetch(self) -> None:
        """Begins to copy what was launched to the host."""
        self._results_here.copy_(self._results, non_blocking=True)
        if self._staged.reports:
            self._top_here.copy_(self._top, non_blocking=True)

    def read(self) -> Sampled:
        """What was fetched, once it is there."""
        tokens, statuses = (column[: self._num_rows].numpy() for column in self._results_here[:2])
        sampled = Sampled(tokens=tokens.copy(), logprobs=[None] * self._num_rows)
        refused = self._staged.refused
        for index in sorted({*refused, *np.flatnonzero(statuses).tolist()}):
            sampled.errors[index] = self._reason(int(statuses[index]), int(tokens[index]), refused.get(index))
        for index, num_top in self._staged.reports:
            if index not in sampled.errors:
                sampled.logprobs[index] = self._report(index, num_top)
        return sampled

    def _reason(self, status: int, token: int, refused: str | None) -> str:
        if refused is not None and status != RowStatus.NOT_FINITE:
            return refused
        return reason_of(status, token, self.limits.vocab_size)

    def _report(self, index: int, num_top: int) -> TokenLogprobs:
        _, _, logprobs, ranks = self._results_here
        ids, top = self._top_here[0, index, :num_top], self._top_here[1, index, :num_top]
        return TokenLogprobs(
            logprob=float(logprobs.view(torch.float32)[index]),
            rank=int(ranks[index]),
            top_ids=tuple(ids.tolist()),
            top_logprobs=tuple(top.view(torch.float32).tolist()),
        )
