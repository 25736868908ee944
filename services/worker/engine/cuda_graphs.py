"""Decode steps captured once for a ladder of sizes, and replayed: a step is then one launch instead of hundreds.

A captured step reads its columns from where StepBuffers keeps them, and leaves its results where they were when it was
captured. Steps with prompts have too many shapes; they run as they are.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.worker.engine.interface import StepInput
from services.worker.models.cuda import StepTensors

Compute = Callable[[StepTensors], tuple[Tensor, Tensor]]

_SMALL_SIZES = (1, 2, 4)
_STEP = 8
_WARM_UPS = 2  # libraries choose their kernels and claim their memory at first use, which a capture cannot bear


def ladder(max_num_seqs: int) -> list[int]:
    """Sizes to capture: 1, 2, 4, then every eighth, up to max_num_seqs itself."""
    sizes = [*_SMALL_SIZES, *range(_STEP, max_num_seqs, _STEP)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def is_plain_decode(batch: StepInput) -> bool:
    """Whether every sequence computes one token and samples it."""
    count = len(batch.context_lens)
    return len(batch.token_ids) == count == len(batch.sampled)


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor
    is_finite: Tensor


class DecodeGraphs:
    """compute: a step over columns that always lie in the same place. sizes: rising."""

    def __init__(self, compute: Compute, sizes: Sequence[int]) -> None:
        self._compute = compute
        self._sizes = list(sizes)
        self._captured: dict[int, _Captured] = {}
        self._pool: Any = None

    def size_for(self, num_sequences: int) -> int | None:
        """The smallest captured size that holds so many, None if none does."""
        index = bisect.bisect_left(self._sizes, num_sequences)
        if index == len(self._sizes) or self._sizes[index] not in self._captured:
            return None
        return self._sizes[index]

    def capture_all(self, columns_of_size: Callable[[int], StepTensors]) -> Iterator[int]:
        """Captures size by size, the largest first, whose memory the others then share; yields each when it is done.

        columns_of_size: a step of that size whose keys and values go nowhere.
        """
        for size in reversed(self._sizes):
            self._captured[size] = self._capture(columns_of_size(size))
            yield size

    def measure(self, columns_of_size: Callable[[int], StepTensors]) -> int:
        """Bytes that all sizes will keep: those of the largest, whose memory the others share."""
        free_before, _ = torch.cuda.mem_get_info()
        captured = self._capture(columns_of_size(self._sizes[-1]))
        free, _ = torch.cuda.mem_get_info()
        self._pool = None
        del captured
        torch.cuda.empty_cache()
        return max(0, free_before - free)

    def _capture(self, columns: StepTensors) -> _Captured:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's stub says nothing of it
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._compute(columns)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits, is_finite = self._compute(columns)
        self._pool = graph.pool()
        return _Captured(graph, logits, is_finite)

    def replay(self, size: int) -> tuple[Tensor, Tensor]:
        """The captured step of this size over the columns as they are now: its logits and what is finite."""
        captured = self._captured[size]
        captured.graph.replay()
        return captured.logits, captured.is_finite
