"""Blocks of the KV cache that nobody may find as cache."""

import torch
from torch import Tensor

from services.worker.engine.interface import StepInput, StepOutput


def find_spoiled_blocks(kv_cache: Tensor, block_size: int, batch: StepInput, output: StepOutput) -> list[int]:
    """Of the blocks of failed sequences those with values that are not finite, whoever wrote them.

    kv_cache: [layers, 2, num_blocks, ...], of any dtype, on any device.
    """
    failed = {*output.failed, *(int(batch.sampled[row]) for row in output.errors)}
    used = -(-batch.context_lens // block_size)
    blocks = sorted({block for index in failed for block in batch.block_tables[index, : used[index]].tolist()})
    held = kv_cache[:, :, torch.tensor(blocks, dtype=torch.int64, device=kv_cache.device)].transpose(0, 2)
    finite = torch.isfinite(held.float()).flatten(1).all(dim=1).tolist()
    return [block for block, is_finite in zip(blocks, finite, strict=True) if not is_finite]
