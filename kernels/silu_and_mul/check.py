"""Cases for `python -m kernels check`."""

import torch

from kernels.check.case import Case, Size, Trial, error, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.silu_and_mul import reference
from kernels.silu_and_mul.cuda import SiluAndMul


def cases(size: Size) -> list[Case]:
    """Rows of an MLP's width."""
    shapes = [(3, 1536)] if size is Size.SMALL else [(64, 14336), (4096, 14336)]
    return [_case(dtype, shape) for dtype in (torch.bfloat16, torch.float16) for shape in shapes]


def _case(dtype: torch.dtype, shape: tuple[int, int]) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        gate_up = random_tensor(1, (shape[0], 2 * shape[1]), dtype, device)
        out = torch.full(shape, float("nan"), dtype=dtype, device=device)
        expected = reference.silu_and_mul(to_numpy(gate_up))
        operation = SiluAndMul(load, dtype, shape[1])
        return Trial(
            launch=lambda: operation(out, gate_up),
            compare=lambda: error(out, expected),
            num_bytes=gate_up.nbytes + out.nbytes,
        )

    return Case("silu_and_mul", f"{short_name(dtype)} {list(shape)}", prepare)
