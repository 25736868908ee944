"""Which part of a model's weights each rank keeps: parts fit together, whatever the model, and nothing else is kept."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from services.worker.engine.options import EngineError
from services.worker.models.parameters import Parameters, WeightsError
from services.worker.models.shards import own_config, own_weights
from shared.repository.config import ModelConfig

HEAD_DIM = 6


@dataclass(frozen=True)
class Rank:
    rank: int
    size: int


def model(num_heads: int = 8, num_kv_heads: int = 4, inner: int = 24, vocab_size: int = 32) -> ModelConfig:
    """With every kind of parameter that a family has."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        qk_norm=True,
    )


def random_weights(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in config.parameter_shapes().items()}


def parts_of(config: ModelConfig, size: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    whole = random_weights(config)
    return whole, [dict(own_weights(config, whole.items(), Rank(rank, size))) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
def test_every_part_has_the_shapes_of_its_own_configuration(size: int, num_kv_heads: int) -> None:
    config = model(num_kv_heads=num_kv_heads, vocab_size=37)
    _, parts = parts_of(config, size)
    for rank, part in enumerate(parts):
        own = own_config(config, Rank(rank, size))
        Parameters(part.items(), own.parameter_shapes(), torch.float32)
        assert (own.hidden_size, own.head_dim, own.num_hidden_layers) == (16, HEAD_DIM, 2)


@pytest.mark.parametrize("name", ["q_proj.weight", "q_proj.bias", "k_proj.weight", "v_proj.weight", "v_proj.bias"])
def test_heads_are_split_in_order(name: str) -> None:
    whole, parts = parts_of(model(), 4)
    name = f"model.layers.1.self_attn.{name}"
    assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])


@pytest.mark.parametrize("name", ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.up_proj.bias"])
def test_inner_values_are_split_in_order(name: str) -> None:
    whole, parts = parts_of(model(), 4)
    name = f"model.layers.1.{name}"
    assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])


@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
def test_parts_of_a_sum_add_up_and_its_bias_counts_once(name: str) -> None:
    whole, parts = parts_of(model(), 4)
    name = f"model.layers.0.{name}"
    assert torch.equal(torch.cat([part[f"{name}.weight"] for part in parts], dim=1), whole[f"{name}.weight"])
    assert torch.equal(sum(part[f"{name}.bias"] for part in parts), whole[f"{name}.bias"])


@pytest.mark.parametrize(("num_kv_heads", "size"), [(1, 8), (2, 4), (2, 8), (4, 8)])
def test_each_rank_has_the_key_head_that_its_query_heads_read(num_kv_heads: int, size: int) -> None:
    config = model(num_heads=16, num_kv_heads=num_kv_heads)
    whole, parts = parts_of(config, size)
    for rank, part in enumerate(parts):
        first_query_head = rank * 16 // size
        head = first_query_head // (16 // num_kv_heads)
        for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias"):
            name = f"model.layers.0.self_attn.{name}"
            assert torch.equal(part[name], whole[name][head * HEAD_DIM : (head + 1) * HEAD_DIM])


@pytest.mark.parametrize("vocab_size", [32, 33, 35])
def test_token_ids_are_split_into_equal_parts_that_end_in_zeros(vocab_size: int) -> None:
    whole, parts = parts_of(model(vocab_size=vocab_size), 4)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        held = torch.cat([part[name] for part in parts])
        assert {len(part[name]) for part in parts} == {-(-vocab_size // 4)}
        assert torch.equal(held[:vocab_size], whole[name])
        assert not held[vocab_size:].any()


def test_norms_are_whole_everywhere() -> None:
    whole, parts = parts_of(model(), 2)
    for name in whole:
        if name.endswith("norm.weight"):
            assert all(torch.equal(part[name], whole[name]) for part in parts)


def test_a_part_keeps_no_memory_of_the_whole() -> None:
    config = model()
    _, parts = parts_of(config, 4)
    for part in parts:
        for name, tensor in part.items():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


def test_without_a_group_the_weights_are_handed_on_as_they_are() -> None:
    config = model()
    weights = random_weights(config).items()
    assert own_config(config, None) is config
    assert own_weights(config, weights, None) is weights


@pytest.mark.parametrize(
    ("size", "sizes", "words"),
    [
        (3, {}, ("8 attention heads", "num_attention_heads")),
        (16, {"num_kv_heads": 8}, ("8 attention heads", "num_attention_heads")),
        (2, {"inner": 25}, ("25", "intermediate_size")),
        (4, {"num_heads": 12, "num_kv_heads": 6}, ("6 key/value heads", "num_key_value_heads")),
        (6, {"num_heads": 12, "num_kv_heads": 4}, ("4 key/value heads", "num_key_value_heads")),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_name(size: int, sizes: dict[str, int], words: tuple[str, ...]) -> None:
    with pytest.raises(EngineError) as refusal:
        own_config(model(**sizes), Rank(0, size))
    assert all(word in str(refusal.value) for word in (f"tensor_parallel_size {size}", *words))


def test_a_misshapen_tensor_is_named_with_the_shape_of_the_whole() -> None:
    """Not accepted because it has the shape of a part."""
    config = model()
    name = "model.layers.0.self_attn.q_proj.weight"
    part = torch.zeros(own_config(config, Rank(0, 2)).parameter_shapes()[name])
    with pytest.raises(WeightsError, match=rf"{name} has shape \(24, 16\), .* \(48, 16\)"):
        dict(own_weights(config, [(name, part)], Rank(0, 2)))


def test_an_unknown_name_is_left_to_whoever_takes_the_weights() -> None:
    assert [name for name, _ in own_weights(model(), [("odd", torch.zeros(1))], Rank(0, 2))] == ["odd"]
