"""The emulated tile instructions against what Intel's manual says; where a processor has tiles, it against the same.

What the kernels make of them is tested with all other levels (test_linear_bf16.py, test_linear_int8.py).
"""

import ctypes
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.linear.packing import pack_bf16
from kernels.linear.packing_int8 import pack_int8
from kernels.linear.product import Products
from kernels.native.build import SOURCES, library_file
from kernels.native.isa import COMPILER_FLAGS, cpu_flags, levels_of
from tests.kernels.products import EMULATED_AMX, products, random_values
from tests.waiting import LIMIT_S

LEVELS = levels_of(cpu_flags())
PROBES = ["emulated", *(level for level in LEVELS if level == "amx")]

Bytes = NDArray[np.uint8]


@pytest.fixture(scope="module", params=PROBES)
def probe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """amx_probe.cpp, compiled for the emulation or for the processor's own tiles."""
    emulated = request.param == "emulated"
    flags = [*COMPILER_FLAGS["avx2" if emulated else "amx"], *(["-DTOKENBUS_EMULATE_AMX=1"] if emulated else [])]
    program = tmp_path_factory.mktemp("amx") / "probe"
    sources = [Path(__file__).with_name("amx_probe.cpp"), SOURCES / "native" / "amx.cpp"]
    command = ["g++", "-std=c++20", "-O2", "-ffp-contract=fast", *flags, f"-I{SOURCES.parent}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=LIMIT_S)
    return program


def shape(*tiles: tuple[int, int], palette: int = 1, damage: tuple[int, int] | None = None) -> bytes:
    """A configuration: (rows, bytes of a row) of tiles 0, 1, ... damage: (offset, value) of one byte."""
    config = bytearray(struct.pack("<BB14x", palette, 0))
    config += struct.pack("<16H", *(size for _, size in tiles), *[0] * (16 - len(tiles)))
    config += bytes([rows for rows, _ in tiles]).ljust(16, b"\0")
    if damage is not None:
        config[damage[0]] = damage[1]
    return bytes(config)


def run(probe: Path, operation: str, config: bytes, tiles: Bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([probe, operation], input=config + tiles.tobytes(), capture_output=True, timeout=LIMIT_S)


def tile_0(probe: Path, operation: str, config: bytes, tiles: Bytes) -> Bytes:
    done = run(probe, operation, config, tiles)
    assert done.returncode == 0, done.stderr
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(16, 64)


def random_tiles(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (3, 16, 64), dtype=np.uint8)


def bf16_tiles(seed: int, scale: float = 1.0) -> Bytes:
    """Tile 0 of float32, the others of bfloat16."""
    generator = np.random.default_rng(seed)
    tiles = np.empty((3, 16, 64), dtype=np.uint8)
    tiles[0] = (generator.standard_normal((16, 16)) * scale).astype(np.float32).view(np.uint8)
    for tile in tiles[1:]:
        values = (generator.standard_normal((16, 32)) * scale).astype(np.float32)
        tile[:] = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return tiles


def floats_of(pairs: Bytes) -> NDArray[np.float32]:
    """bfloat16 [rows, words, 2] as float32."""
    return (pairs.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(len(pairs), -1, 2)


def flush(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)


def expected_bf16(tiles: Bytes, rows: int, columns: int, words: int) -> NDArray[np.float32]:
    """TDPBF16PS of the manual. A product of two bfloat16 is exact in float64; so is its sum with a float32 of a like
    size, hence rounding that to float32 is what a fused multiply and add does."""
    sums = tiles[0].copy().view(np.float32)[:rows, :columns]
    a, b = flush(floats_of(tiles[1])), flush(floats_of(tiles[2]))
    parts = np.zeros((rows, columns, 2), dtype=np.float32)
    for k in range(words):
        added = a[:rows, k].astype(np.float64)[:, None, :] * b[k, :columns].astype(np.float64)[None]
        parts = flush((parts + added).astype(np.float32))
    return flush(flush(sums) + flush(parts[..., 0] + parts[..., 1]))


@pytest.mark.parametrize(
    ("rows", "columns", "words"), [(16, 16, 16), (1, 16, 16), (7, 5, 3), (16, 1, 1), (3, 16, 9), (16, 9, 16)]
)
def test_products_of_pairs_are_rounded_in_the_manuals_order(probe: Path, rows: int, columns: int, words: int) -> None:
    tiles = bf16_tiles(rows + columns + words)
    config = shape((rows, 4 * columns), (rows, 4 * words), (words, 4 * columns))
    result = tile_0(probe, "bf16", config, tiles)
    actual = result[:rows, : 4 * columns].copy().view(np.float32)
    np.testing.assert_array_equal(actual, expected_bf16(tiles, rows, columns, words))
    assert (result[rows:] == 0xEE).all()
    assert (result[:, 4 * columns :] == 0xEE).all()


def test_denormal_numbers_count_as_zero(probe: Path) -> None:
    tiles = bf16_tiles(5, scale=1e-19)  # products are about 1e-38, the least normal number
    tiles[1, 2], tiles[2, 3] = bf16_tiles(6, scale=1e-39)[1, 2], bf16_tiles(6, scale=1e-39)[2, 3]
    result = tile_0(probe, "bf16", shape(*[(16, 64)] * 3), tiles).copy().view(np.float32)
    np.testing.assert_array_equal(result, expected_bf16(tiles, 16, 16, 16))
    assert (result[2] == tiles[0, 2].copy().view(np.float32)).all()


@pytest.mark.parametrize(("rows", "columns", "words"), [(16, 16, 16), (1, 16, 16), (7, 5, 3), (16, 1, 1)])
def test_products_of_bytes_wrap_around_in_32_bits(probe: Path, rows: int, columns: int, words: int) -> None:
    tiles = random_tiles(rows)
    result = tile_0(probe, "bytes", shape((rows, 4 * columns), (rows, 4 * words), (words, 4 * columns)), tiles)
    a = tiles[1, :rows, : 4 * words].view(np.int8).reshape(rows, words, 4).astype(np.int64)
    b = tiles[2, :words, : 4 * columns].reshape(words, columns, 4).astype(np.int64)
    sums = tiles[0].copy().view(np.int32)[:rows, :columns].astype(np.int64) + np.einsum("mkb,knb->mn", a, b)
    np.testing.assert_array_equal(result[:rows, : 4 * columns].copy().view(np.int32), sums.astype(np.int32))


def test_zeroed_tiles_are_stored_as_configured(probe: Path) -> None:
    result = tile_0(probe, "zero", shape((5, 12), (1, 4), (1, 4)), random_tiles(1))
    assert not result[:5, :12].any()
    assert (result[5:] == 0xEE).all()
    assert (result[:, 12:] == 0xEE).all()


def test_tiles_are_shaped_anew_for_another_number_of_rows(probe: Path) -> None:
    result = tile_0(probe, "reshape", shape(*[(16, 64)] * 3), random_tiles(1))
    assert not result[:3].any()
    assert (result[3:] == 0xEE).all()


FULL = [(16, 64)] * 3
FAULTS = {
    "palette": (shape(*FULL, palette=2), "bf16"),
    "reserved byte": (shape(*FULL, damage=(5, 1)), "bf16"),
    "ninth tile": (shape(*FULL, damage=(32, 64)), "bf16"),
    "too many rows": (shape((17, 64), *FULL[1:]), "bf16"),
    "too many bytes": (shape((16, 68), *FULL[1:]), "bf16"),
    "rows without bytes": (shape((16, 0), *FULL[1:]), "bf16"),
    "tile that is not configured": (shape((16, 64), (16, 64)), "bf16"),
    "nothing configured": (shape(*FULL), "unconfigured"),
    "released by palette 0": (shape(palette=0), "bf16"),
    "released by us": (shape(*FULL), "released"),
    "rows of sums and inputs differ": (shape((15, 64), *FULL[1:]), "bf16"),
    "columns of sums and weights differ": (shape((16, 60), *FULL[1:]), "bytes"),
    "inputs and weights do not meet": (shape((16, 64), (16, 60), (16, 64)), "bytes"),
    "bytes that are no words": (shape((16, 64), (16, 62), (15, 64)), "bf16"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_processor_would_refuse_ends_the_process(probe: Path, fault: str) -> None:
    config, operation = FAULTS[fault]
    assert run(probe, operation, config, random_tiles(1)).returncode < 0


@pytest.mark.parametrize("probe", ["emulated"], indirect=True)
def test_one_tile_twice_ends_the_emulation(probe: Path) -> None:
    done = run(probe, "same", shape(*FULL), random_tiles(1))
    assert done.returncode < 0
    assert b"three different tiles" in done.stderr


@pytest.mark.parametrize("rows", [16, 17, 31, 32, 33, 50, 64, 65])
def test_int8_gives_the_same_bits_with_tiles_and_without(rows: int) -> None:
    values, packed = random_values(rows, 320, rows), pack_int8(random_values(70, 320, 2))
    assert torch.equal(products(EMULATED_AMX).multiply(packed, values), products(LEVELS[0]).multiply(packed, values))


def test_without_permission_products_are_those_without_tiles() -> None:
    below = LEVELS[-2] if LEVELS[-1] == "amx" else LEVELS[-1]
    refused = Products(below, num_threads=2, defines=("TOKENBUS_EMULATE_AMX=0",))
    values, weights = random_values(40, 192, 1), random_values(70, 192, 2)
    for packed in (pack_bf16(weights), pack_int8(weights)):
        assert torch.equal(refused.multiply(packed, values), products(below).multiply(packed, values))


@pytest.mark.parametrize("level", LEVELS[1:][-1:])
def test_the_library_with_tiles_works_where_the_system_grants_none(level: str) -> None:
    """And where it does, with tiles. It needs AVX512 in any case."""
    library = ctypes.CDLL(str(library_file("amx")))
    library.tokenbus_team_new.restype = ctypes.c_void_p
    team = ctypes.c_void_p(library.tokenbus_team_new(2))
    values, packed = random_values(40, 192, 1), pack_bf16(random_values(70, 192, 2))
    out = torch.empty(40, 70)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (values, out)]
    library.tokenbus_linear(team, ctypes.byref(packed.struct()), 1, pointers[0], 40, pointers[1])
    library.tokenbus_team_delete(team)
    assert torch.equal(out, products(level).multiply(packed, values))
