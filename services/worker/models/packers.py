"""How a model's matrices are packed for the C++ kernels: as they are, as int8, or in the blocks of their GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from kernels.linear.packing import PackedLinear, pack_bf16
from kernels.linear.packing_blocks import RawBlocks, can_pack, pack_blocks, quantize_q8_0
from kernels.linear.packing_int8 import fits_int8, pack_int8
from services.worker.models.layers import Linear

T = TypeVar("T", Tensor, Tensor | None)


class Packer(Protocol):
    """A choice of encodings."""

    def pack(self, linear: Linear, order: Tensor | None = None) -> PackedLinear:
        """A layer's projection; order: int64 [n_out], which row becomes each output, None for as they are."""

    def pack_head(self, linear: Linear) -> PackedLinear:
        """lm_head, or the embedding, which the model may tie to it."""


class Bf16Packer:
    """Everything in bfloat16."""

    def pack(self, linear: Linear, order: Tensor | None = None) -> PackedLinear:
        """See Packer."""
        return pack_bf16(_in_order(linear.weight, order), _in_order(linear.bias, order))

    def pack_head(self, linear: Linear) -> PackedLinear:
        """See Packer."""
        return self.pack(linear)


class Int8Packer(Bf16Packer):
    """Projections in int8 with one scale an output, their inputs quantised as they come. The head, whose rounding
    decides between neighbours among all tokens, has a scale for every 32 weights, as GGUF's Q8_0 has."""

    def pack(self, linear: Linear, order: Tensor | None = None) -> PackedLinear:
        """See Packer."""
        if not fits_int8(linear.weight.shape[1]):
            return super().pack(linear, order)
        return pack_int8(_in_order(linear.weight, order), _in_order(linear.bias, order))

    def pack_head(self, linear: Linear) -> PackedLinear:
        """See Packer."""
        return pack_blocks([quantize_q8_0(linear.weight)], bias=linear.bias)


@dataclass(frozen=True, slots=True)
class BlockPacker:
    """The file's own blocks, without loss; what it holds in another encoding becomes bfloat16.

    blocks: by parameter name, in Hugging Face's row order.
    """

    blocks: Mapping[str, RawBlocks]

    def pack(self, linear: Linear, order: Tensor | None = None) -> PackedLinear:
        """See Packer."""
        parts = [self.blocks[name] for name in linear.names if name in self.blocks]
        rows = len(linear.weight) if order is None else len(order)
        is_whole = len(parts) == len(linear.names) and sum(len(part.data) for part in parts) == rows
        if not is_whole or not can_pack([part.type for part in parts]):
            return Bf16Packer().pack(linear, order)
        return pack_blocks(parts, order, _in_order(linear.bias, order))

    def pack_head(self, linear: Linear) -> PackedLinear:
        """See Packer."""
        return self.pack(linear)


def _in_order(rows: T, order: Tensor | None) -> T:
    return rows if rows is None or order is None else rows[order]
