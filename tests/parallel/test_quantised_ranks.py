"""Quantised weights on the ranks of a group, kernels in the emulator: they stay packed, and mean what they meant."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.cpu import CpuEngine
from services.worker.models.decoder import Decoder
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.parameters import Parameters
from services.worker.models.quantised import PackedLinear, inner_orders, iter_weights_but_matrices, pack_projections
from services.worker.models.registry import builder_of
from services.worker.models.shards import own_config
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.engine.options import Options
from tests.engine.test_cuda_forward import PROMPTS, first_step
from tests.parallel.groups import KV_CACHE_BYTES
from tests.parallel.test_cuda_ranks import forward_with
from tests.parallel.threads import Meeting, ThreadRank
from tests.repository.quantised_folders import make_quantised_model

SIZE = 2
SIZES = {"head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2}
QUANTIZATIONS = [
    Quantization(layout="awq", group_size=64),  # a feed-forward's inner values are cut within a group
    Quantization(layout="gptq", group_size=32, zeros_less_one=True),
    Quantization(layout="gptq", group_size=64, desc_act=True, zeros_less_one=True),
    Quantization(layout="int8"),
    Quantization(layout="int8-packed"),
    Quantization(layout="fp8"),
]


def store(folder: Path, quantization: Quantization, **sizes: object) -> StoredModel:
    """With biases on the side of outputs and of inputs."""
    options = {"attention_bias": True, "mlp_bias": True, **SIZES, **sizes}
    make_quantised_model(folder / "source", quantization, **options)
    return ModelRepository(folder / "models").add(inspect_path(folder / "source"), "tiny")


def decoder_of(stored: StoredModel, rank: ThreadRank) -> Decoder:
    """As CudaEngine loads it."""
    config, kept = stored.config, dict[str, QuantisedMatrix]()
    assert config.quantization is not None
    own = own_config(config, rank)
    weights = iter_weights_but_matrices(stored, config.quantization, kept, rank)
    decoder = builder_of(config.architecture)(own, Parameters(weights, own.parameter_shapes(), torch.bfloat16))
    return pack_projections(decoder.shared(config.vocab_size, rank), kept, torch.bfloat16)


def logits_of(stored: StoredModel, decoder: Decoder, rank: ThreadRank, exact: CpuEngine) -> Tensor:
    forward = forward_with(decoder, own_config(stored.config, rank), stored.config.vocab_size)
    return forward.compute_logits(first_step(exact, PROMPTS))


def exact_and_rounded(stored: StoredModel) -> tuple[CpuEngine, CpuEngine]:
    """The dequantised model in float32 and, on torch, in bfloat16."""
    return (
        CpuEngine.load(stored, Options(dtype="float32", kv_cache_memory_bytes=KV_CACHE_BYTES)),
        CpuEngine.load(stored, Options(dtype="bfloat16", cpu_kernels="torch", kv_cache_memory_bytes=KV_CACHE_BYTES)),
    )


def are_as_good_as_torchs(logits: Tensor, stored: StoredModel) -> bool:
    exact, rounded = exact_and_rounded(stored)
    batch = first_step(exact, PROMPTS)
    expected = exact.compute_logits(batch)
    allowed = (rounded.compute_logits(batch) - expected).norm(dim=1)
    error = (logits - expected).norm(dim=1)
    return bool((error <= 1.5 * allowed + 1e-2 * expected.norm(dim=1)).all())


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)
def test_ranks_compute_the_model_with_packed_weights(tmp_path: Path, quantization: Quantization) -> None:
    stored = store(tmp_path, quantization)
    exact, _ = exact_and_rounded(stored)

    def compute(rank: ThreadRank) -> tuple[list[bool], Tensor]:
        decoder = decoder_of(stored, rank)
        is_packed = [
            isinstance(projection(layer, name), PackedLinear) for layer in decoder.layers for name in PROJECTIONS
        ]
        return is_packed, logits_of(stored, decoder, rank, exact)

    (first_packed, first), (second_packed, second) = Meeting(SIZE).run(compute)
    assert all(first_packed) and all(second_packed)
    assert torch.equal(first, second)
    assert are_as_good_as_torchs(first, stored)


def test_inner_values_are_taken_in_the_order_of_their_groups(tmp_path: Path) -> None:
    """So that down is as small as it was, and its rows' values need no other order."""
    stored = store(tmp_path, QUANTIZATIONS[2], intermediate_size=256)
    assert set(inner_orders(stored)) == {"model.layers.0.mlp", "model.layers.1.mlp"}
    for rank in range(SIZE):
        for layer in decoder_of(stored, ThreadRank(Meeting(SIZE), rank)).layers:
            down, output = layer.feed_forward.down, layer.attention.output
            assert isinstance(down, PackedLinear) and isinstance(output, PackedLinear)
            assert down.packed is not None and output.packed is not None
            assert (down.packed.num_inputs, down.packed.group_size, down.packed.order) == (128, 64, None)
            assert output.packed.order is not None  # heads stay where they are


def test_groups_in_order_need_no_other_order(tmp_path: Path) -> None:
    assert inner_orders(store(tmp_path, QUANTIZATIONS[1])) == {}


def test_what_cannot_be_packed_is_dequantised_by_itself(tmp_path: Path) -> None:
    """40 inner values to a rank are no multiple of the 32 inputs of a chunk."""
    stored = store(tmp_path, QUANTIZATIONS[3], intermediate_size=80)
    exact, _ = exact_and_rounded(stored)

    def compute(rank: ThreadRank) -> tuple[list[bool], Tensor]:
        decoder = decoder_of(stored, rank)
        is_packed = [isinstance(projection(decoder.layers[0], name), PackedLinear) for name in PROJECTIONS]
        return is_packed, logits_of(stored, decoder, rank, exact)

    (is_packed, logits), _ = Meeting(SIZE).run(compute)
    assert dict(zip(PROJECTIONS, is_packed, strict=True)) == {name: name != "down" for name in PROJECTIONS}
    assert are_as_good_as_torchs(logits, stored)
