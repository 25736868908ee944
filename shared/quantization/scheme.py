"""What a model's files say of its quantised matrices: one value, whichever of the formats it came from."""

from typing import Literal

import msgspec

Layout = Literal["awq", "gptq", "int8", "int8-packed", "fp8"]
"""awq: AutoAWQ's, version gemm. gptq: AutoGPTQ's. int8: compressed-tensors' int-quantized; int8-packed: its
pack-quantized with 8 bits. fp8: e4m3, as compressed-tensors' float-quantized and AutoFP8 have it."""

FOUR_BITS: tuple[Layout, ...] = ("awq", "gptq")
GROUP_SIZES = (32, 64, 128)


class Quantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which layout a model's projections are in. Those that its files hold as plain floats are plain floats.

    group_size: inputs that share a scale and a zero, of 4-bit layouts; 0 for a scale an output or a matrix.
    desc_act: inputs were quantised in the order of their importance, so that a group's inputs lie anywhere.
    zeros_less_one: the zeros are stored less 1, as the first version of gptq does.
    """

    layout: Layout
    group_size: int = 0
    desc_act: bool = False
    zeros_less_one: bool = False
