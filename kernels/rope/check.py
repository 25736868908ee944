"""Cases for `python -m kernels check`."""

import torch

from kernels.check.case import Case, Size, Trial, error, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.rope import reference
from kernels.rope.cuda import Rope
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies

_NUM_POSITIONS = 4096


def cases(size: Size) -> list[Case]:
    """Queries and keys of a token, its values behind them untouched."""
    shapes = [(4, 5, 80)] if size is Size.SMALL else [(64, 40, 128), (8192, 40, 128)]
    return [_case(dtype, *shape) for dtype in (torch.bfloat16, torch.float16) for shape in shapes]


def _case(dtype: torch.dtype, num_tokens: int, num_heads: int, head_dim: int) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        qkv = random_tensor(1, (num_tokens, num_heads + 2, head_dim), dtype, device)
        positions = torch.arange(num_tokens) * 7 % _NUM_POSITIONS
        table = cos_sin_table(inverse_frequencies(head_dim, 10000.0, None), _NUM_POSITIONS)
        before = to_numpy(qkv)
        before[:, :num_heads] = reference.rope(before[:, :num_heads], positions.numpy(), table)
        operation = Rope(load, dtype, num_heads, head_dim)
        on_device = torch.from_numpy(table).to(device), positions.to(device)
        return Trial(
            launch=lambda: operation(qkv.flatten(1), *on_device),
            compare=lambda: error(qkv, before),
            num_bytes=2 * qkv[:, :num_heads].numel() * dtype.itemsize,
        )

    return Case("rope", f"{short_name(dtype)} {[num_tokens, num_heads, head_dim]}", prepare)
