"""The layout of quantised weights that the kernels read, made once when a model is loaded.

Weights lie in chunks of 32 columns (outputs) by 32 inputs, a column's chunks one after another. A warp reads a chunk
whole, each lane its own 16 bytes (4 bits) or twice 16 (8 bits): lane l has the columns 8 tile + l / 4 of the four
tiles, and of each the inputs 8 (l % 4) to 8 (l % 4) + 7.

    4 bits   words    uint32 [columns / 32][chunks][lane][tile]      input i of eight in bits 4 (i / 2) + 16 (i % 2)
             scales   float16 [columns / 32][groups][l % 4][tile][2]  of the columns 8 tile + 2 (l % 4) and the next
             zeros    uint16 [columns / 32][groups][l / 4]            4 bits a tile
    8 bits   words    bytes [columns / 32][chunks][tile / 2][lane][tile % 2][8 inputs]
             scales   float32 [columns]

Columns are filled up with zeros to a multiple of 32. Where a group's inputs lie anywhere (desc_act), the inputs are
reordered so that each group's are neighbours, and the launcher takes the rows' values in that order. Where a group has
lost inputs to another rank, it is filled up with weights of zero.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Encoding = Literal["int4", "int8", "fp8"]

CHUNK = 32
GROUP_SIZES = (32, 64, 128)
_MOST_FILLED = 3  # times the inputs: with more of them, plain weights of 16 bits would be fewer bytes
_TILES, _TILE = 4, 8
_QUADS, _INPUTS = 4, 8  # of lanes that share a column, and the inputs that each has


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights [num_columns, num_inputs] in this layout.

    group_size: inputs that share a scale; a chunk's for 8 bits, whose scales are a column's. zeros: None for 8 bits.
    order: int32 [num_inputs], which input of a row each weight multiplies; None for the inputs as they are.
    """

    encoding: Encoding
    num_columns: int
    num_inputs: int
    group_size: int
    words: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    order: Tensor | None = None

    def to(self, device: torch.device) -> "PackedWeights":
        """The same in a device's memory."""
        return replace(
            self,
            words=self.words.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            order=None if self.order is None else self.order.to(device),
        )


def pack_int4(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> PackedWeights:
    """codes: uint8 [n, k], 0 to 15; scales: float [n, groups], kept as float16; zeros: uint8 [n, groups], 0 to 15;
    group_of: int64 [k], as many inputs in each group.

    Raises ValueError for sizes that the kernels cannot, and for scales beyond float16.
    """
    n, k = codes.shape
    num_groups = scales.shape[1]
    group_size = k // num_groups
    if group_size not in GROUP_SIZES or group_size * num_groups != k:
        raise ValueError(f"{k} inputs in {num_groups} groups; a group has {', '.join(map(str, GROUP_SIZES))} inputs")
    _check_columns(n)
    order = group_of.argsort(stable=True)
    if not torch.equal(group_of[order], torch.arange(k) // group_size):
        raise ValueError("the groups have different numbers of inputs")
    is_in_order = torch.equal(order, torch.arange(k))
    halves = scales.half()
    if not torch.isfinite(halves).all():
        raise ValueError("a scale is more than float16 holds")
    return PackedWeights(
        encoding="int4",
        num_columns=n,
        num_inputs=k,
        group_size=group_size,
        words=_int4_words(_filled(codes if is_in_order else codes[:, order])),
        scales=_by_quads(_filled(halves)),
        zeros=_int4_zeros(_filled(zeros)),
        order=None if is_in_order else order.to(torch.int32),
    )


def pack_uneven_int4(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> PackedWeights:
    """pack_int4 for any number of inputs in each group, such as those that a cut leaves to it.

    Groups become several of 128, 64 or 32 inputs with the same scale, whichever of these divides them all. If none
    does, they are filled up to multiples of 32 with weights of zero; these multiply input 0, which is there. Raises
    ValueError where that would be too many, and for sizes that the kernels cannot.
    """
    k = codes.shape[1]
    sizes = group_of.bincount(minlength=scales.shape[1])
    size = next((size for size in reversed(GROUP_SIZES) if not (sizes % size).any()), CHUNK)
    parts = -(-sizes // size)
    room = parts * size
    num_inputs = int(room.sum())
    if num_inputs > _MOST_FILLED * k:
        raise ValueError(f"{k} inputs would be filled up to {num_inputs}")
    order = group_of.argsort(stable=True)
    shifts = room.cumsum(0) - room - (sizes.cumsum(0) - sizes)
    places = torch.arange(k) + shifts[group_of[order]]
    filled = zeros.repeat_interleave(room, dim=1)
    filled[:, places] = codes[:, order]
    taken = torch.zeros(num_inputs, dtype=torch.int64)
    taken[places] = order
    scales, zeros = (values.repeat_interleave(parts, dim=1) for values in (scales, zeros))
    packed = pack_int4(filled, scales, zeros, torch.arange(num_inputs) // size)
    is_as_it_was = num_inputs == k and torch.equal(taken, torch.arange(k))
    return packed if is_as_it_was else replace(packed, order=taken.to(torch.int32))


def pack_8_bits(values: Tensor, scales: Tensor) -> PackedWeights:
    """values: int8 or float8_e4m3fn [n, k]; scales: float32 [n].

    Raises ValueError for sizes that the kernels cannot.
    """
    n, k = values.shape
    _check_columns(n)
    if k % CHUNK:
        raise ValueError(f"{k} inputs are no multiple of {CHUNK}")
    encodings: dict[torch.dtype, Encoding] = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
    parts = _by_lanes(_filled(values.view(torch.uint8)))
    words = parts.unflatten(3, (_TILES // 2, 2)).movedim(3, 2)  # type: ignore[no-untyped-call]
    return PackedWeights(encodings[values.dtype], n, k, CHUNK, words.contiguous(), _filled(scales.float()))


def _check_columns(n: int) -> None:
    if n % _TILE:
        raise ValueError(f"{n} outputs are no multiple of {_TILE}")


def _filled(rows: Tensor) -> Tensor:
    """With rows of zeros up to a multiple of 32."""
    missing = -len(rows) % CHUNK
    return functional.pad(rows, (0,) * (2 * rows.dim() - 1) + (missing,)) if missing else rows


def _by_lanes(values: Tensor) -> Tensor:
    """[n, k] to [n / 32, chunks, lane, tile, 8 inputs]."""
    n, k = values.shape
    parts = values.reshape(n // CHUNK, _TILES, _TILE, k // CHUNK, _QUADS, _INPUTS)
    return parts.permute(0, 3, 2, 4, 1, 5).reshape(n // CHUNK, k // CHUNK, _TILE * _QUADS, _TILES, _INPUTS)


def _int4_words(codes: Tensor) -> Tensor:
    inputs = torch.arange(_INPUTS)
    shifts = 4 * (inputs // 2) + 16 * (inputs % 2)
    words = (_by_lanes(codes).to(torch.int64) << shifts).sum(dim=-1)
    return words.to(torch.uint32).view(torch.int32)


def _by_quads(scales: Tensor) -> Tensor:
    """[n, groups] to [n / 32, groups, l % 4, tile, 2]."""
    n, num_groups = scales.shape
    return scales.reshape(n // CHUNK, _TILES, _QUADS, 2, num_groups).permute(0, 4, 2, 1, 3).contiguous()


def _int4_zeros(zeros: Tensor) -> Tensor:
    """[n, groups] to int16 [n / 32, groups, l / 4]."""
    n, num_groups = zeros.shape
    parts = zeros.reshape(n // CHUNK, _TILES, _TILE, num_groups).permute(0, 3, 2, 1)
    words = (parts.to(torch.int32) << 4 * torch.arange(_TILES)).sum(dim=-1)
    return words.to(torch.uint16).view(torch.int16)
