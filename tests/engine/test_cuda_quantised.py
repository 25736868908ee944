"""A quantised model on the CUDA engine, its kernels in the emulator: the model that the CPU computes dequantised."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.quant_matmul.layout import PackedWeights
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from services.worker.models.cuda import CudaDecoder, Limits
from services.worker.models.decoder import Decoder
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.parameters import Parameters
from services.worker.models.quantised import (
    PackedLinear,
    iter_weights_but_matrices,
    pack_fused,
    pack_projections,
)
from services.worker.models.registry import builder_of
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.kernels.emulator.module import load_emulated
from tests.quantization.matrices import grouped, scaled
from tests.repository.quantised_folders import make_quantised_model

LIMITS = Limits(max_num_tokens=64, max_num_seqs=8, num_parallel=8)
QUANTIZATIONS = [
    Quantization(layout="awq", group_size=64),
    Quantization(layout="gptq", group_size=32, desc_act=True, zeros_less_one=True),
    Quantization(layout="int8"),
    Quantization(layout="fp8"),
]


def loaded(model: StoredModel, quantization: Quantization) -> Decoder:
    """As CudaEngine loads it."""
    kept: dict[str, QuantisedMatrix] = {}
    weights = iter_weights_but_matrices(model, quantization, kept)
    parameters = Parameters(weights, model.config.parameter_shapes(), torch.bfloat16)
    return pack_projections(builder_of(model.config.architecture)(model.config, parameters), kept, torch.bfloat16)


def stored(folder: Path, quantization: Quantization, architecture: str = "Qwen2ForCausalLM") -> StoredModel:
    make_quantised_model(folder / "source", quantization, architecture, head_dim=64)
    return ModelRepository(folder / "models").add(inspect_path(folder / "source"), "tiny")


def device_decoder(model: StoredModel, decoder: Decoder) -> CudaDecoder:
    config = model.config
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    cos_sin = torch.from_numpy(cos_sin_table(frequencies, 64))
    return CudaDecoder(decoder, cos_sin, torch.bfloat16, 16, LIMITS, load_emulated())


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)
@pytest.mark.parametrize("num_tokens", [5, 20])
def test_every_projection_multiplies_with_its_own_weights(
    tmp_path: Path, quantization: Quantization, num_tokens: int
) -> None:
    model = stored(tmp_path, quantization)
    decoder = loaded(model, quantization)
    on_device = device_decoder(model, decoder)
    exact = {name: tensor.double() for name, tensor in dequantised_weights(model, quantization)}
    for layer in decoder.layers:
        for name in PROJECTIONS:
            linear = projection(layer, name)
            assert isinstance(linear, PackedLinear)
            weight = torch.cat([exact[part] for part in linear.names])
            x = torch.randn((num_tokens, weight.shape[1]), generator=torch.Generator().manual_seed(1)).bfloat16()
            out = torch.full((num_tokens, len(weight)), float("nan"), dtype=torch.bfloat16)
            on_device._product(out, x, linear)
            expected = x.double() @ weight.t() + (0 if linear.bias is None else linear.bias.double())
            size = x.double().abs() @ weight.abs().t()
            assert ((out.double() - expected).abs() <= expected.abs() * 2.0**-8 + size * 1e-6).all()


def dequantised_weights(model: StoredModel, quantization: Quantization) -> list[tuple[str, torch.Tensor]]:
    kept: dict[str, QuantisedMatrix] = {}
    list(iter_weights_but_matrices(model, quantization, kept))
    return [(name, matrix.dequantise()) for name, matrix in kept.items()]


def test_a_matrix_takes_no_other_memory(tmp_path: Path) -> None:
    decoder = loaded(stored(tmp_path, QUANTIZATIONS[0]), QUANTIZATIONS[0])
    for layer in decoder.layers:
        for name in PROJECTIONS:
            assert projection(layer, name).weight.is_meta


def test_fused_projections_of_which_one_is_plain_are_plain(tmp_path: Path) -> None:
    quantization = QUANTIZATIONS[2]
    matrices = make_quantised_model(tmp_path / "source", quantization)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    tensors[name] = matrices[name].dequantise()
    del tensors[name + "_scale"]
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    model = ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "source"), "tiny")
    first, second, *_ = loaded(model, quantization).layers
    assert isinstance(first.attention.query_key_value, PackedLinear)
    plain = second.attention.query_key_value
    assert not isinstance(plain, PackedLinear)
    expected = torch.cat([matrices[part].dequantise() for part in plain.names]).bfloat16()
    assert torch.equal(plain.weight, expected)
    assert isinstance(second.attention.output, PackedLinear)


def test_inputs_in_different_orders_cannot_be_fused() -> None:
    parts = [grouped(16, 128, 32, desc_act=True, order_seed=seed) for seed in (1, 2)]
    assert pack_fused(parts) is None
    assert pack_fused([scaled(16, 40, torch.int8)]) is None  # inputs that fill no chunk
    fused = pack_fused([parts[0], parts[0]])
    assert isinstance(fused, PackedWeights)
    assert (fused.num_columns, fused.num_inputs) == (32, 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_scales_beyond_float16_are_no_infinities(dtype: torch.dtype) -> None:
    """The kernels' scales are float16; files also have others, and a matrix with a larger one is dequantised."""
    matrix = grouped(16, 128, 32)
    wide = replace(matrix, scales=matrix.scales.to(dtype))
    assert pack_fused([wide]) is not None
    wide.scales[3, 1] = 1e5
    assert pack_fused([wide]) is None
    assert pack_fused([matrix, wide]) is None
