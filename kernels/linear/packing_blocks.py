"""The blocks of GGUF files, regrouped into the layouts of blocks.h. No bit of a weight is lost or made up.

A block is 32 inputs of one output (the 256 of a Q4_K block are eight of them); ggml's block_q4_0, block_q4_1,
block_q8_0 and block_q4_K say how files lay them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.linear.packing import PANEL, PackedLinear, pack_bias

BLOCK = 32
Q4, Q8 = 2, 3
FOUR_BIT_TYPES = ("Q4_0", "Q4_1", "Q4_K")
EIGHT_BIT_TYPES = ("Q8_0",)

_ZERO_CODE = np.uint8(128)  # of Q8_0, once its codes are unsigned


@dataclass(frozen=True, slots=True)
class RawBlocks:
    """Rows of a tensor as a GGUF file holds them. type: ggml's name; data: uint8 [n_out, bytes of a row]."""

    type: str
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """codes: uint8 [n_out, blocks, bytes]. scales: float16 or float32 [n_out, blocks, 1 or 2], minimums second."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.floating]


def can_pack(types: Sequence[str]) -> bool:
    """Whether tensors of these types can be one matrix here: all of four bits, or all of eight."""
    return all(kind in FOUR_BIT_TYPES for kind in types) or all(kind in EIGHT_BIT_TYPES for kind in types)


def pack_blocks(parts: Sequence[RawBlocks], order: Tensor | None = None, bias: Tensor | None = None) -> PackedLinear:
    """One matrix of several tensors with the same inputs, stacked along their outputs.

    order: int64 [n_out], which of the stacked rows becomes each output; None: as they are. bias: [n_out] in the order
    of the outputs, or None. Raises ValueError for types that can_pack refuses.
    """
    types = [part.type for part in parts]
    if not parts or not can_pack(types):
        raise ValueError(f"blocks of types {', '.join(types)} do not make one matrix")
    blocks = [_PARSERS[part.type](part.data) for part in parts]
    codes = np.concatenate([block.codes for block in blocks])
    scales = np.concatenate([block.scales for block in blocks])  # float32 as soon as one part's are
    if order is not None:
        codes, scales = codes[order.numpy()], scales[order.numpy()]
    n_out, num_blocks = codes.shape[:2]
    panels = -(-n_out // PANEL)
    grouped = _grouped(codes.reshape(n_out, num_blocks, -1, 4), panels)
    numbers = _grouped(scales[..., np.newaxis], panels).view(np.uint8)
    packed = torch.empty(panels, num_blocks, grouped.shape[2] + numbers.shape[2], dtype=torch.uint8)
    packed[..., : grouped.shape[2]] = torch.from_numpy(grouped)
    packed[..., grouped.shape[2] :] = torch.from_numpy(numbers)
    encoding = Q8 if types[0] in EIGHT_BIT_TYPES else Q4
    wide_scales = encoding == Q4 and scales.dtype == np.float32
    return PackedLinear(encoding, n_out, num_blocks * BLOCK, packed, pack_bias(bias, panels), wide_scales)


def quantize_q8_0(weight: Tensor) -> RawBlocks:
    """weight: [n_out, n_in] of any float dtype, n_in a multiple of 32: as Q8_0 blocks, each with its nearest codes."""
    values = weight.float().view(len(weight), -1, BLOCK)
    scales = (values.abs().amax(dim=2, keepdim=True) / 127).half()
    steps = torch.where(scales > 0, scales.float(), 1.0)
    codes = (values / steps).round_().clamp_(-127, 127).to(torch.int8)
    data = torch.cat((scales.view(torch.uint8), codes.view(torch.uint8)), dim=2)
    return RawBlocks("Q8_0", data.view(len(weight), -1).numpy())


def _grouped(rows: NDArray[np.generic], panels: int) -> NDArray[np.generic]:
    """[n_out, blocks, things, items] to [panels, blocks, things * 32 * items]; missing columns are zero."""
    n_out, num_blocks, num_things, num_items = rows.shape
    padded = np.zeros((panels * PANEL, num_blocks, num_things, num_items), rows.dtype)
    padded[:n_out] = rows
    panelled = padded.reshape(panels, PANEL, num_blocks, num_things, num_items).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(panelled).reshape(panels, num_blocks, -1)


def _split(data: NDArray[np.uint8], *sizes: int) -> list[NDArray[np.uint8]]:
    """The fields of these sizes in every block of each row: [n_out, blocks, size] each."""
    blocks = data.reshape(len(data), -1, sum(sizes))
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=2)


def _halves(field: NDArray[np.uint8]) -> NDArray[np.float16]:
    return np.ascontiguousarray(field).view(np.float16)


def _parse_q4_0(data: NDArray[np.uint8]) -> _Blocks:
    """weight = scale * (code - 8): eight steps below zero is a minimum that fp16 holds exactly."""
    scale, codes = _split(data, 2, 16)
    return _Blocks(codes, np.concatenate((_halves(scale), np.float16(-8) * _halves(scale)), axis=2))


def _parse_q4_1(data: NDArray[np.uint8]) -> _Blocks:
    scales, codes = _split(data, 4, 16)
    return _Blocks(codes, _halves(scales))


def _parse_q8_0(data: NDArray[np.uint8]) -> _Blocks:
    scale, codes = _split(data, 2, 32)
    return _Blocks(codes ^ _ZERO_CODE, _halves(scale))


def _parse_q4_k(data: NDArray[np.uint8]) -> _Blocks:
    """256 inputs: two fp16 factors, twelve bytes with eight scales and eight minimums of six bits, 128 bytes of codes.

    weight = factor * scale * code - other factor * minimum. Of every 64 inputs the first 32 are the low halves of 32
    bytes, the others the high ones.
    """
    factors, numbers, codes = _split(data, 4, 12, 128)
    low, high, rest = numbers[..., :4], numbers[..., 4:8], numbers[..., 8:]
    scales = np.concatenate((low & 63, rest & 15 | low >> 6 << 4), axis=2)
    minimums = np.concatenate((high & 63, rest >> 4 | high >> 6 << 4), axis=2)
    of_scales, of_minimums = np.split(_halves(factors).astype(np.float32), 2, axis=2)
    pairs = np.stack((of_scales * scales, -(of_minimums * minimums)), axis=3)
    bytes_of_64 = codes.reshape(*codes.shape[:2], 4, 1, 2, 16)
    of_32 = np.concatenate((bytes_of_64 & 15, bytes_of_64 >> 4), axis=3)  # [n_out, blocks, 4, 2, halves, 16]
    regrouped = of_32[..., 0, :] | of_32[..., 1, :] << 4
    return _Blocks(regrouped.reshape(len(data), -1, 16), pairs.reshape(len(data), -1, 2))


_PARSERS = {"Q4_0": _parse_q4_0, "Q4_1": _parse_q4_1, "Q4_K": _parse_q4_k, "Q8_0": _parse_q8_0}
