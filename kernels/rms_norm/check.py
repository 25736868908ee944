"""Cases for `python -m kernels check`."""

import torch

from kernels.check.case import Case, Size, Trial, error, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.rms_norm import reference
from kernels.rms_norm.cuda import RmsNorm, RmsNormHeads

_EPS = 1e-5


def cases(size: Size) -> list[Case]:
    """Rows with the residual's addition, as all but the first of a model's norms; heads in place."""
    rows = [(3, 576)] if size is Size.SMALL else [(64, 4096), (8192, 4096)]
    heads = [(3, 5, 80)] if size is Size.SMALL else [(64, 40, 128), (8192, 40, 128)]
    return [
        case
        for dtype in (torch.bfloat16, torch.float16)
        for case in (*(_rows(dtype, shape) for shape in rows), *(_heads(dtype, shape) for shape in heads))
    ]


def _rows(dtype: torch.dtype, shape: tuple[int, int]) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        x = random_tensor(1, shape, dtype, device)
        residual, weight = (
            random_tensor(seed, dims, torch.float32, device) for seed, dims in ((2, shape), (3, shape[1:]))
        )
        out = torch.full_like(x, float("nan"))
        expected, total = reference.add_rms_norm(to_numpy(x), to_numpy(residual), to_numpy(weight), _EPS)
        operation = RmsNorm(load, dtype, shape[1])
        return Trial(
            launch=lambda: operation(out, residual, weight, _EPS, x),
            compare=lambda: max(error(out, expected), error(residual, total)),
            num_bytes=x.nbytes + out.nbytes + 2 * residual.nbytes,
        )

    return Case("rms_norm", f"{short_name(dtype)} {list(shape)}", prepare)


def _heads(dtype: torch.dtype, shape: tuple[int, int, int]) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        heads = random_tensor(1, shape, dtype, device)
        weight = random_tensor(2, shape[2:], torch.float32, device)
        expected = reference.rms_norm(to_numpy(heads), to_numpy(weight), _EPS)
        operation = RmsNormHeads(load, dtype, shape[2])
        return Trial(
            launch=lambda: operation(heads, weight, _EPS),
            compare=lambda: error(heads, expected),
            num_bytes=2 * heads.nbytes,
        )

    return Case("rms_norm", f"{short_name(dtype)} heads {list(shape)}", prepare)
