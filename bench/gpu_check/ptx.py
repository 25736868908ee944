"""PTX self-tests: each function of kernels/cuda/ptx.cuh and numbers.cuh, by the small kernels that test the emulator.

They are compiled like every kernel, and must do on a device what the PTX manual says, which is what the emulator does.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu_check.findings import Findings
from bench.gpu_check.where import Where
from kernels.cuda.module import Argument, KernelModule, c_name

PROBES = "tests.kernels.emulator.probes"  # by name: no package knows the tests
_ONE, _WARP = (1, 1, 1), (32, 1, 1)
_WIDE = (torch.bfloat16, torch.float16)
_NARROW = (*_WIDE, torch.float8_e4m3fn)
_UNITS_OF_EXP2 = 4 * 2.0**-23  # ex2.approx: 2 units in the last place, and its input's own rounding


class _Bench:
    """Launches probes; tensors go to the device and come back."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._probes: Any = importlib.import_module(PROBES)
        self._modules: dict[str, KernelModule] = {}

    def launch(self, file: str, kernel: str, *arguments: Argument) -> None:
        """One warp of a kernel of this file of probes."""
        if file not in self._modules:
            self._modules[file] = self._where.load(self._probes.source(file), self._probes.instances(file))
        self._modules[file].launch(f"tokenbus::{kernel}", _ONE, _WARP, arguments)
        self._where.wait()

    def there(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return values.to(self._where.device, copy=True)


Test = Callable[[_Bench], str]  # what is wrong, empty if nothing is


def run(findings: Findings, where: Where) -> None:
    """Each test by itself: one that fails says nothing of the others."""
    bench = _Bench(where)
    for name, test in _tests():
        try:
            problem = test(bench)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        findings.check(name, not problem, problem)


def _tests() -> Iterator[tuple[str, Test]]:
    for is_transposed in (False, True):
        yield f"ldmatrix.x4{'.trans' if is_transposed else ''}", partial(_ldmatrix, is_transposed=is_transposed)
    for dtype in _WIDE:
        yield f"mma.m16n8k16 {_name(dtype)}, of what ldmatrix loaded", partial(_mma, dtype=dtype)
    for pending in range(5):
        yield f"cp.async, wait_group {pending}", partial(_arrived, pending=pending)
    for is_there in (True, False):
        yield f"cp.async of 16 bytes{'' if is_there else ' that are not there'}", partial(_copied, is_there=is_there)
    for dtype in _NARROW:
        yield f"float to {_name(dtype)}", partial(_narrowed, dtype=dtype)
        yield f"{_name(dtype)} to float", partial(_widened, dtype=dtype)
    yield "ex2.approx and other fast mathematics", _fast_mathematics


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ldmatrix(bench: _Bench, is_transposed: bool) -> str:
    rows = np.random.default_rng(1).integers(0, 2**16, (32, 8)).astype(np.uint16)
    out = bench.there(torch.zeros((32, 4), dtype=torch.int32))
    kernel = f"loaded<{str(is_transposed).lower()}>"
    bench.launch("matrices", kernel, out, bench.there(torch.from_numpy(rows.view(np.int16))))
    found = out.cpu().numpy().view(np.uint16).reshape(32, 4, 2)
    for matrix in range(4):
        expected = rows[8 * matrix : 8 * matrix + 8]
        if not np.array_equal(found[:, matrix].reshape(8, 8), expected.T if is_transposed else expected):
            return f"matrix {matrix} is in other lanes"
    return ""


def _mma(bench: _Bench, dtype: torch.dtype) -> str:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn((16, 16), generator=generator).to(dtype) for _ in "ab")
    out = bench.there(torch.full((16, 16), float("nan")))
    bench.launch("matrices", f"product<{c_name(dtype)}>", out, bench.there(a), bench.there(b))
    return _far(out.cpu().double(), a.double() @ b.double(), 1e-4)


def _arrived(bench: _Bench, pending: int) -> str:
    """What was waited for must be there. On a device the rest may be there, too."""
    seen = bench.there(torch.full((5,), -1, dtype=torch.int32))
    bench.launch("copies", f"arrived<{pending}>", seen, bench.there(torch.arange(1, 65, dtype=torch.uint8)))
    waited_for = seen.cpu().tolist()[: 4 - pending]
    return "" if all(waited_for) else f"of the groups waited for only these are there: {waited_for}"


def _copied(bench: _Bench, is_there: bool) -> str:
    given = torch.arange(1, 65, dtype=torch.uint8)
    seen = bench.there(torch.zeros((3, 16), dtype=torch.uint8))
    source = bench.there(given) if is_there else None
    bench.launch("copies", "seen_of_a_copy", seen, source, np.bool_(is_there))
    found, expected = seen.cpu()[2].tolist(), given[:16].tolist() if is_there else [0] * 16
    return "" if found == expected else f"{found} came"


def _narrowed(bench: _Bench, dtype: torch.dtype) -> str:
    """Against torch's own rounding, within the dtype's range: beyond it torch does not saturate."""
    values = torch.randn(4096, generator=torch.Generator().manual_seed(3)) * 20
    out = bench.there(torch.zeros(len(values), dtype=dtype))
    bench.launch("conversions", f"narrowed<{c_name(dtype)}>", out, bench.there(values), np.int32(len(values)))
    differing = int((out.cpu().float() != values.to(dtype).float()).sum())
    return f"{differing} of {len(values)} differ" if differing else ""


def _widened(bench: _Bench, dtype: torch.dtype) -> str:
    bits = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32)
    values = bits.to(torch.int16 if dtype.itemsize == 2 else torch.uint8).view(dtype)
    out = bench.there(torch.zeros(len(values)))
    bench.launch("conversions", f"widened<{c_name(dtype)}>", out, bench.there(values), np.int32(len(values)))
    is_equal = np.array_equal(out.cpu().numpy(), values.float().numpy(), equal_nan=True)
    return "" if is_equal else "some differ"


def _fast_mathematics(bench: _Bench) -> str:
    values = torch.linspace(0.01, 20, 1000)
    out = bench.there(torch.zeros((5, len(values))))
    bench.launch("conversions", "fast_mathematics", out, bench.there(values), np.int32(len(values)))
    x: NDArray[np.float64] = values.double().numpy()
    found: NDArray[np.float64] = out.cpu().double().numpy()
    bounds = (_UNITS_OF_EXP2, 1e-5, None, 1e-6, 1e-6)  # __logf is held to an absolute bound: it passes through 0
    for row, (expected, bound) in enumerate(
        zip((np.exp2(x), np.exp(x), np.log(x), 1 / np.sqrt(x), 1 / x), bounds, strict=True)
    ):
        error = np.abs(found[row] - expected) / (np.abs(expected) if bound is not None else 1.0)
        if not error.max() <= (bound or 1e-5):
            return f"function {row} is off by {error.max():.1e}"
    return ""


def _far(found: torch.Tensor, expected: torch.Tensor, bound: float) -> str:
    error = float((found - expected).abs().max())
    return "" if error <= bound else f"off by {error:.1e}"
