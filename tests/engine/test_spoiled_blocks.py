"""Which blocks of a failed sequence hold values that are not finite, in memory that a full device has."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.worker.engine.interface import StepOutput
from services.worker.engine.spoiled_blocks import find_spoiled_blocks
from services.worker.engine.warm_up import warm_up_step

BLOCK_SIZE = 4
NUM_BLOCKS = 32
NUM_LAYERS = 16
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
NOT_FINITE = "not finite"


class LargestTensor(TorchDispatchMode):
    """num_bytes: of the largest tensor that is made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not made._is_view():
            self.num_bytes = max(self.num_bytes, made.nbytes)
        return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", [0, NUM_LAYERS - 1])
def test_only_blocks_of_failed_sequences_are_told_and_no_copy_of_all_layers_is_made(
    dtype: torch.dtype, layer: int
) -> None:
    """Two sequences have half of the cache each; both have a spoiled block, and one has failed."""
    kv_cache = torch.zeros((NUM_LAYERS, 2, NUM_BLOCKS, BLOCK_SIZE, 2, 8), dtype=dtype)
    for half, block in ((0, 3), (1, 20), (1, 31)):
        kv_cache[layer, half, block, 1, 0, 5] = float("nan")
    half_of_blocks = NUM_BLOCKS // 2
    batch = warm_up_step(np.full(2, half_of_blocks * BLOCK_SIZE, dtype=np.int32), BLOCK_SIZE)
    batch.block_tables = np.arange(NUM_BLOCKS, dtype=np.int32).reshape(2, half_of_blocks)
    for output in (
        StepOutput(batch.sampled, failed={1: NOT_FINITE}),
        StepOutput(batch.sampled, errors={1: NOT_FINITE}),
    ):
        with LargestTensor() as largest:
            assert find_spoiled_blocks(kv_cache, BLOCK_SIZE, batch, output) == [20, 31]
        assert 0 < largest.num_bytes <= 4 * kv_cache.numel() // NUM_LAYERS


def test_without_failures_nothing_is_told() -> None:
    kv_cache = torch.full((NUM_LAYERS, 2, NUM_BLOCKS, BLOCK_SIZE, 2, 8), float("nan"))
    batch = warm_up_step(np.array([BLOCK_SIZE], dtype=np.int32), BLOCK_SIZE)
    assert find_spoiled_blocks(kv_cache, BLOCK_SIZE, batch, StepOutput(batch.sampled)) == []
