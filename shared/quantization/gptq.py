"""AutoGPTQ's layout (Frantar et al., GPTQ, 2022; the layout is that of its library).

qweight: int32 [n_in / 8, n_out], eight inputs to a word; qzeros: int32 [groups, n_out / 8], eight outputs to a word;
scales: [groups, n_out]; g_idx: int32 [n_in], the group of each input. Of qzeros there are two versions: the first one
holds every zero less 1, within 4 bits: a zero of 0 is there as 15.
"""

from torch import Tensor, int32, int64

from shared.quantization.matrix import GroupedMatrix, groups_in_order
from shared.quantization.words import pack_words, unpack_words

_BITS = 4
_MASK = (1 << _BITS) - 1


def unpack_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, zeros_less_one: bool
) -> GroupedMatrix:
    """The matrix that these tensors hold. g_idx: None where the inputs are grouped as they come.

    Raises ValueError for a g_idx whose groups do not all have as many inputs.
    """
    codes = unpack_words(qweight.t().contiguous(), _BITS)
    zeros = unpack_words(qzeros, _BITS)
    n_in, num_groups = codes.shape[1], scales.shape[0]
    group_of = groups_in_order(n_in, n_in // num_groups) if g_idx is None else g_idx.to(int64)
    _check_groups(group_of, num_groups)
    return GroupedMatrix(
        codes=codes,
        scales=scales.t().contiguous(),
        zeros=((zeros + int(zeros_less_one)) & _MASK).t().contiguous(),
        group_of=group_of,
    )


def pack_gptq(matrix: GroupedMatrix, zeros_less_one: bool) -> dict[str, Tensor]:
    """Its tensors by the ends of their names."""
    zeros = (matrix.zeros - int(zeros_less_one)) & _MASK
    return {
        "qweight": pack_words(matrix.codes, _BITS).t().contiguous(),
        "qzeros": pack_words(zeros.t(), _BITS),
        "scales": matrix.scales.t().contiguous(),
        "g_idx": matrix.group_of.to(int32),
    }


def _check_groups(group_of: Tensor, num_groups: int) -> None:
    if int(group_of.min()) < 0 or int(group_of.max()) >= num_groups:
        raise ValueError(f"g_idx names a group that is none of the {num_groups}")
    sizes = group_of.bincount(minlength=num_groups)
    if int(sizes.min()) != int(sizes.max()):
        raise ValueError(f"g_idx has groups of {int(sizes.min())} and of {int(sizes.max())} inputs")
