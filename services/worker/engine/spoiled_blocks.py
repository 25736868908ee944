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
    index = torch.tensor(blocks, dtype=torch.int64, device=kv_cache.device)
    is_finite = torch.ones(len(blocks), dtype=torch.bool, device=kv_cache.device)
    for layer in kv_cache:  # one by one: a long sequence's blocks of all of them may be more than the cache leaves free
        is_finite &= torch.isfinite(layer[:, index].float()).transpose(0, 1).flatten(1).all(dim=1)
    return [block for block, is_well in zip(blocks, is_finite.tolist(), strict=True) if not is_well]
