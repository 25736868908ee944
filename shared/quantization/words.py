"""Codes in 32-bit words: eight of 4 bits, four of 8; the first one in the lowest bits."""

import torch
from torch import Tensor

WORD_BITS = 32


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """uint8 [..., n] to int32 [..., n * bits / 32]; n fills whole words."""
    a_word = WORD_BITS // bits
    shifts = torch.arange(0, WORD_BITS, bits)
    parts = codes.reshape(*codes.shape[:-1], -1, a_word)
    words = (parts.to(torch.int64) << shifts).sum(dim=-1).to(torch.uint32)
    return words.view(torch.int32)


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 [..., n] to uint8 [..., n * 32 / bits]."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(-2).to(torch.uint8)
