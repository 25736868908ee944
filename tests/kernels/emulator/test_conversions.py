"""Numbers in the emulator, bit by bit, as a device's own instructions convert them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.kernels.emulator import probes

ONE = (1, 1, 1)
DTYPES = {"__nv_bfloat16": torch.bfloat16, "__half": torch.float16, "__nv_fp8_e4m3": torch.float8_e4m3fn}
NARROW = {"__nv_bfloat16": torch.int16, "__half": torch.int16, "__nv_fp8_e4m3": torch.uint8}

# By cvt.rn, for 8 bits .satfinite: what becomes of a NaN, whose sign is nobody's business, and of what is too large.
NAN_BITS = {"__nv_bfloat16": 0x7FFF, "__half": 0x7FFF, "__nv_fp8_e4m3": 0x7F}
LARGEST_BITS = {"__nv_bfloat16": 0x7F80, "__half": 0x7C00, "__nv_fp8_e4m3": 0x7E}


def all_of(name: str) -> NDArray[np.float32]:
    """Every finite number of this type that is not negative, in order."""
    bits = torch.arange(LARGEST_BITS[name] + (name == "__nv_fp8_e4m3")).to(NARROW[name])
    values: NDArray[np.float32] = bits.view(DTYPES[name]).float().numpy()
    return values


def narrowed(name: str, values: NDArray[np.float32]) -> list[int]:
    """from_float's bits."""
    out = torch.zeros(len(values), dtype=DTYPES[name])
    arguments = (out, torch.from_numpy(values.astype(np.float32)), np.int32(len(values)))
    probes.load("conversions").launch(f"tokenbus::narrowed<{name}>", ONE, (32, 1, 1), arguments)
    unsigned = np.uint8 if out.element_size() == 1 else np.uint16
    return [int(bits) for bits in out.view(NARROW[name]).numpy().view(unsigned)]


@pytest.mark.parametrize("name", DTYPES)
def test_each_number_is_rounded_to_the_nearest_one_ties_to_even(name: str) -> None:
    numbers = all_of(name)
    exact = (numbers[:-1].astype(np.float64) + numbers[1:]) / 2
    middles = exact.astype(np.float32)
    assert np.array_equal(middles, exact)
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    lower = np.arange(len(middles))
    sign = 0x80 if name == "__nv_fp8_e4m3" else 0x8000
    for values, expected in (
        (numbers, np.arange(len(numbers))),
        (below, lower),
        (above, lower + 1),
        (middles, lower + lower % 2),
    ):
        assert narrowed(name, values) == expected.tolist()
        assert narrowed(name, -values) == (expected + sign).tolist()


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_too_large_and_what_is_no_number(name: str) -> None:
    largest, nan = LARGEST_BITS[name], NAN_BITS[name]
    sign = 0x80 if name == "__nv_fp8_e4m3" else 0x8000
    too_large = np.array([np.finfo(np.float32).max, np.inf], dtype=np.float32)
    assert narrowed(name, too_large) == [largest] * 2
    assert narrowed(name, -too_large) == [largest + sign] * 2
    found = narrowed(name, np.array([np.nan, -np.nan], dtype=np.float32))
    assert [bits & ~sign for bits in found] == [nan, nan]
    assert narrowed(name, np.array([0.0, -0.0], dtype=np.float32)) == [0, sign]


def test_a_cache_of_8_bits_saturates() -> None:
    values = np.array([447.0, 448.0, 449.0, 464.0, 465.0, 1e30], dtype=np.float32)
    assert narrowed("__nv_fp8_e4m3", values) == [0x7E] * 6


@pytest.mark.parametrize("name", DTYPES)
def test_every_number_is_widened_exactly(name: str) -> None:
    count = 1 << (8 * DTYPES[name].itemsize)
    values = torch.arange(count).to(NARROW[name]).view(DTYPES[name])
    out = torch.zeros(count)
    arguments = (out, values, np.int32(count))
    probes.load("conversions").launch(f"tokenbus::widened<{name}>", ONE, (32, 1, 1), arguments)
    expected = values.float().numpy()
    assert np.array_equal(out.numpy(), expected, equal_nan=True)
    is_number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(out.numpy())[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("name", ["float", *DTYPES])
def test_sixteen_bytes_are_unpacked_in_order_and_packed_again(name: str) -> None:
    dtype = DTYPES.get(name, torch.float32)
    values = (torch.arange(16 // dtype.itemsize) * 3.0 - 7).to(dtype)
    out, again = torch.zeros(len(values)), torch.zeros_like(values)
    probes.load("conversions").launch(f"tokenbus::unpacked<{name}>", ONE, ONE, (out, again, values))
    assert torch.equal(out, values.float())
    assert torch.equal(again.view(torch.uint8), values.view(torch.uint8))


@pytest.mark.parametrize("name", ["__nv_bfloat16", "__half"])
def test_the_first_of_two_lies_in_the_low_half(name: str) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    arguments = (out, np.float32(1.5), np.float32(-2.25))
    probes.load("conversions").launch(f"tokenbus::two_packed<{name}>", ONE, ONE, arguments)
    assert out.view(DTYPES[name]).tolist() == [1.5, -2.25]


def test_fast_mathematics_where_a_device_differs_from_the_c_library() -> None:
    inf = float("inf")
    values = torch.tensor([-inf, -200.0, -149.0, -127.0, -126.0, 0.0, 1.0, 127.0, 128.0, inf, 2.0**126, 2.0**127])
    out = torch.zeros((5, len(values)))
    arguments = (out, values, np.int32(len(values)))
    probes.load("conversions").launch("tokenbus::fast_mathematics", ONE, (32, 1, 1), arguments)
    powers, exponentials, logarithms, roots, inverses = out
    # ex2.approx.ftz has no numbers below the normal ones
    assert powers[:10].tolist() == [0, 0, 0, 0, 2.0**-126, 1, 2, 2.0**127, inf, inf]
    assert exponentials[[0, 5, 9]].tolist() == [0, 1, inf]
    assert logarithms[[5, 6, 9]].tolist() == [-inf, 0, inf]
    assert roots[[5, 6, 9]].tolist() == [inf, 1, 0]
    # a divisor beyond 2^126 gives 0
    assert inverses[[6, 9, 10, 11]].tolist() == [1, 0, 2.0**-126, 0]
