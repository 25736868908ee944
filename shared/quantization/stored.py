"""Which tensors of a file hold a quantised matrix, for each layout."""

from dataclasses import dataclass

from shared.quantization.scheme import FOUR_BITS, Quantization

Shape = tuple[int, ...]

_A_WORD = 8  # codes of 4 bits
_BYTES_A_WORD = 4
_FLOATS = ("F16", "BF16", "F32")
_UNREAD = ("input_scale", "input_zero_point", "output_scale")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One tensor. shapes: any of these; dtypes: any of these, in safetensors' words; is_optional: may be absent."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    is_optional: bool = False


def marker(quantization: Quantization) -> tuple[str, str]:
    """(end of the name, dtype) of the tensor by which a quantised matrix is known."""
    if quantization.layout in FOUR_BITS:
        return "qweight", "I32"
    if quantization.layout == "int8-packed":
        return "weight_packed", "I32"
    return "weight", "F8_E4M3" if quantization.layout == "fp8" else "I8"


def stored_parts(quantization: Quantization, n_out: int, n_in: int) -> dict[str, StoredPart]:
    """The parts of a matrix [n_out, n_in] by the ends of their names.

    Raises ValueError where a matrix of this shape cannot be in this layout.
    """
    if quantization.layout in FOUR_BITS:
        return _four_bits(quantization, n_out, n_in)
    parts = {name: StoredPart(((), (1,), (n_out,), (n_out, 1)), _FLOATS, True) for name in _UNREAD}
    parts["weight_scale"] = StoredPart(((), (1,), (n_out,), (n_out, 1), (1, 1)), _FLOATS)
    end, dtype = marker(quantization)
    if quantization.layout == "int8-packed":
        parts["weight_shape"] = StoredPart(((2,),), ("I64", "I32"), True)
        parts[end] = StoredPart(((n_out, -(-n_in // _BYTES_A_WORD)),), (dtype,))
    else:
        parts[end] = StoredPart(((n_out, n_in),), (dtype,))
    return parts


def _four_bits(quantization: Quantization, n_out: int, n_in: int) -> dict[str, StoredPart]:
    group_size = quantization.group_size
    if n_in % group_size:
        raise ValueError(f"its {n_in} inputs are no multiple of the group_size {group_size}")
    if n_out % _A_WORD:
        raise ValueError(f"its {n_out} outputs are no multiple of {_A_WORD}")
    num_groups = n_in // group_size
    parts = {
        "qzeros": StoredPart(((num_groups, n_out // _A_WORD),), ("I32",)),
        "scales": StoredPart(((num_groups, n_out),), _FLOATS),
    }
    if quantization.layout == "awq":
        return {**parts, "qweight": StoredPart(((n_in, n_out // _A_WORD),), ("I32",))}
    return {
        **parts,
        "qweight": StoredPart(((n_in // _A_WORD, n_out),), ("I32",)),
        "g_idx": StoredPart(((n_in,),), ("I32",), is_optional=not quantization.desc_act),
    }
