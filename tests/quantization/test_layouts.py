"""The tensors of AutoAWQ, AutoGPTQ and compressed-tensors, read number by number as their formats say."""

import numpy as np
import pytest
import torch

from shared.quantization.awq import pack_awq, unpack_awq
from shared.quantization.eight_bits import pack_packed_int8, pack_scaled, unpack_packed_int8, unpack_scaled
from shared.quantization.gptq import pack_gptq, unpack_gptq
from shared.quantization.matrix import GroupedMatrix
from shared.quantization.words import pack_words, unpack_words
from tests.quantization.matrices import grouped, scaled

N_OUT, N_IN = 24, 128
GROUP_SIZES = [32, 64, 128]


def same(first: GroupedMatrix, second: GroupedMatrix) -> bool:
    pairs = [(getattr(first, name), getattr(second, name)) for name in ("codes", "scales", "zeros", "group_of")]
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("bits", [4, 8])
def test_words_hold_every_code(bits: int) -> None:
    codes = torch.arange(1 << bits, dtype=torch.uint8).repeat(2, 2).flip(1)
    words = pack_words(codes, bits)
    assert words.dtype == torch.int32
    assert torch.equal(unpack_words(words, bits), codes)
    first = sum(int(code) << bits * place for place, code in enumerate(codes[0, : 32 // bits]))
    assert int(words[0, 0]) & 0xFFFFFFFF == first


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_awq(group_size: int) -> None:
    matrix = grouped(N_OUT, N_IN, group_size)
    tensors = pack_awq(matrix)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "qweight": (N_IN, N_OUT // 8),
        "qzeros": (N_IN // group_size, N_OUT // 8),
        "scales": (N_IN // group_size, N_OUT),
    }
    place_of = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}  # output within its eight -> nibble
    words, zeros, scales = (tensors[name].numpy() for name in ("qweight", "qzeros", "scales"))
    expected = np.empty((N_OUT, N_IN), np.float32)
    for output in range(N_OUT):
        shift = 4 * place_of[output % 8]
        for index in range(N_IN):
            group = index // group_size
            code = int(words[index, output // 8]) >> shift & 15
            zero = int(zeros[group, output // 8]) >> shift & 15
            expected[output, index] = np.float32(code - zero) * np.float32(scales[group, output])
    assert np.array_equal(matrix.dequantise().numpy(), expected)
    assert same(unpack_awq(**tensors), matrix)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("zeros_less_one", [False, True])
def test_gptq(group_size: int, desc_act: bool, zeros_less_one: bool) -> None:
    matrix = grouped(N_OUT, N_IN, group_size, desc_act=desc_act)
    tensors = pack_gptq(matrix, zeros_less_one)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "qweight": (N_IN // 8, N_OUT),
        "qzeros": (N_IN // group_size, N_OUT // 8),
        "scales": (N_IN // group_size, N_OUT),
        "g_idx": (N_IN,),
    }
    words, zeros, scales, groups = (tensors[name].numpy() for name in ("qweight", "qzeros", "scales", "g_idx"))
    expected = np.empty((N_OUT, N_IN), np.float32)
    for output in range(N_OUT):
        for index in range(N_IN):
            group = groups[index]
            code = int(words[index // 8, output]) >> 4 * (index % 8) & 15
            zero = (int(zeros[group, output // 8]) >> 4 * (output % 8)) + zeros_less_one & 15
            expected[output, index] = np.float32(code - zero) * np.float32(scales[group, output])
    assert np.array_equal(matrix.dequantise().numpy(), expected)
    assert same(unpack_gptq(**tensors, zeros_less_one=zeros_less_one), matrix)
    if not desc_act:
        assert same(unpack_gptq(**{**tensors, "g_idx": None}, zeros_less_one=zeros_less_one), matrix)


def test_inputs_in_another_order_are_none_of_awqs() -> None:
    with pytest.raises(ValueError, match="another order"):
        pack_awq(grouped(N_OUT, N_IN, 32, desc_act=True))


@pytest.mark.parametrize(
    ("g_idx", "reason"),
    [
        ([0] * 64 + [1] * 63 + [2], "a group that is none"),
        ([-1] + [0] * 127, "none"),
        ([0] * 65 + [1] * 63, "groups of 63"),
    ],
)
def test_groups_that_cannot_be_are_refused(g_idx: list[int], reason: str) -> None:
    tensors = pack_gptq(grouped(N_OUT, N_IN, 64), zeros_less_one=True)
    tensors["g_idx"] = torch.tensor(g_idx, dtype=torch.int32)
    with pytest.raises(ValueError, match=reason):
        unpack_gptq(**tensors, zeros_less_one=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_eight_bits(dtype: torch.dtype) -> None:
    matrix = scaled(N_OUT, N_IN, dtype)
    tensors = pack_scaled(matrix)
    found = unpack_scaled(**tensors)
    assert torch.equal(found.values.view(torch.uint8), matrix.values.view(torch.uint8))
    assert torch.equal(found.scales, matrix.scales)
    expected = np.array([float(value) for value in matrix.values.flatten()], np.float32).reshape(N_OUT, N_IN)
    assert np.array_equal(found.dequantise().numpy(), expected * matrix.scales.numpy()[:, None])


@pytest.mark.parametrize("shape", [(), (1,), (N_OUT,), (N_OUT, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_come_in_many_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    matrix = scaled(N_OUT, N_IN, torch.int8)
    scale = torch.rand(shape).to(dtype)
    found = unpack_scaled(matrix.values, scale)
    assert found.scales.shape == (N_OUT,)
    assert torch.equal(found.scales, scale.float().reshape(-1).expand(N_OUT))


@pytest.mark.parametrize("n_in", [N_IN, N_IN - 1, N_IN - 2, N_IN - 3])
def test_packed_int8(n_in: int) -> None:
    matrix = scaled(N_OUT, n_in, torch.int8)
    tensors = pack_packed_int8(matrix)
    assert tensors["weight_packed"].shape == (N_OUT, N_IN // 4)
    assert tensors["weight_shape"].tolist() == [N_OUT, n_in]
    assert int(tensors["weight_packed"][3, 5]) >> 8 & 255 == int(matrix.values[3, 21]) + 128
    found = unpack_packed_int8(tensors["weight_packed"], tensors["weight_scale"], n_in)
    assert torch.equal(found.values, matrix.values)


def test_a_weight_that_is_no_number_is_refused() -> None:
    values = scaled(N_OUT, N_IN, torch.float8_e4m3fn).values.clone()
    values.view(torch.uint8)[2, 3] = 0x7F
    with pytest.raises(ValueError, match="not a number"):
        unpack_scaled(values, torch.ones(1))
