"""What `python -m kernels check` tries."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.check.case import Case, Size, Trial, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.quant_matmul.cuda import QuantMatmul, Workspace
from kernels.quant_matmul.layout import Encoding, PackedWeights, pack_8_bits, pack_int4

# Columns, inputs, and the numbers of rows; large: products of a model of 8 billion parameters.
_SHAPES: dict[Size, list[tuple[int, int, tuple[int, ...]]]] = {
    Size.SMALL: [(72, 256, (2, 20))],
    Size.FULL: [(4096, 4096, (1, 16, 64)), (28672, 4096, (1, 16, 512))],
}
_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_SUMMING = 2e-6  # of the sizes of what a float32 sum adds up
_KINDS: tuple[tuple[Encoding, int], ...] = (("int4", 32), ("int4", 128), ("int8", 0), ("fp8", 0))
_NUM_PROCESSORS_EMULATED = 4


def cases(size: Size) -> list[Case]:
    """Of all encodings; group sizes of 4 bits."""
    found = []
    for n, k, numbers in _SHAPES[size]:
        for encoding, group_size in _KINDS:
            name = f"{encoding} group {group_size}" if group_size else encoding
            make = cache(partial(_weights, encoding, group_size, n, k))
            for dtype in (torch.bfloat16, torch.float16):
                for rows in numbers:
                    prepare = partial(_prepare, dtype, rows, make)
                    found.append(Case("quant_matmul", f"{name} {short_name(dtype)} {rows} x {n} x {k}", prepare))
    return found


def _prepare(
    dtype: torch.dtype,
    rows: int,
    make: Callable[[], tuple[PackedWeights, Tensor]],
    load: LoadKernels,
    device: torch.device,
) -> Trial:
    on_cpu, exact = make()
    weights, x = on_cpu.to(device), random_tensor(1, (rows, on_cpu.num_inputs), dtype, device)
    out = torch.empty((rows, weights.num_columns), dtype=dtype, device=device)
    product = QuantMatmul(load, dtype, weights.encoding)
    workspace = Workspace(dtype, _num_processors(device), device)
    expected = to_numpy(x) @ exact.numpy().T
    sizes = np.abs(to_numpy(x)) @ np.abs(exact.numpy()).T
    num_bytes = sum(tensor.nbytes for tensor in (weights.words, weights.scales, x, out))
    num_bytes += 0 if weights.zeros is None else weights.zeros.nbytes
    return Trial(
        launch=partial(product, out, x, weights, workspace),
        compare=lambda: _error(out, expected, sizes),
        num_bytes=num_bytes,
    )


def _error(out: Tensor, expected: NDArray[np.float32], sizes: NDArray[np.float32]) -> float:
    """The largest one, as a share of what the rounding of sums and results allows."""
    allowed = 2 * _ROUNDING[out.dtype] * np.abs(expected) + _SUMMING * sizes
    shares = np.abs(to_numpy(out) - expected) / allowed
    return float(shares.max()) if np.isfinite(shares).all() else float("inf")


def _weights(encoding: Encoding, group_size: int, n: int, k: int) -> tuple[PackedWeights, Tensor]:
    """Random ones, and their meaning: float32 [n, k]."""
    random = torch.Generator().manual_seed(2)
    if encoding == "int4":
        codes = torch.randint(0, 16, (n, k), generator=random, dtype=torch.uint8)
        zeros = torch.randint(0, 16, (n, k // group_size), generator=random, dtype=torch.uint8)
        scales = (torch.rand((n, k // group_size), generator=random) * 0.01 + 0.01).half()
        group_of = torch.arange(k) // group_size
        steps = codes.float() - zeros.float()[:, group_of]
        return pack_int4(codes, scales, zeros, group_of), steps * scales.float()[:, group_of]
    values = torch.randint(-127, 128, (n, k), generator=random, dtype=torch.int8)
    stored = values if encoding == "int8" else (values.float() / 16).to(torch.float8_e4m3fn)
    column_scales = torch.rand(n, generator=random) * 0.001 + 0.001
    return pack_8_bits(stored, column_scales), stored.float() * column_scales[:, None]


def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _NUM_PROCESSORS_EMULATED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
