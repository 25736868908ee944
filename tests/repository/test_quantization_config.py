"""What a quantization_config says, and which field it names when it is none of ours."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.quantization.scheme import Quantization
from shared.repository.config_json import parse_config
from shared.repository.errors import BadModelFile
from shared.repository.quantization_json import parse_quantization, to_quantization_config
from tests.repository.test_config_json import SMALL

FILE = Path("config.json")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False, "group_size": None}


def parsed(config: Any) -> Quantization | None:
    return parse_quantization({"quantization_config": config}, FILE)


def tensors(format_name: str, targets: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": targets or ["Linear"], "weights": {**WEIGHTS, **weights}, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format_name, "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        (AWQ, Quantization(layout="awq", group_size=128)),
        ({**AWQ, "version": "GEMM", "modules_to_not_convert": ["lm_head"]}, Quantization(layout="awq", group_size=128)),
        (GPTQ, Quantization(layout="gptq", group_size=64, desc_act=True, zeros_less_one=True)),
        ({**GPTQ, "desc_act": False, "checkpoint_format": "gptq_v2"}, Quantization(layout="gptq", group_size=64)),
        ({**GPTQ, "desc_act": False, "format": "gptq_v2"}, Quantization(layout="gptq", group_size=64)),
        (
            {**GPTQ, "desc_act": False, "format": "gptq_v2", "checkpoint_format": "gptq_v2"},
            Quantization(layout="gptq", group_size=64),
        ),
        ({**AWQ, "format": "gemm"}, Quantization(layout="awq", group_size=128)),
        (FP8, Quantization(layout="fp8")),
        (tensors("int-quantized"), Quantization(layout="int8")),
        (tensors("naive-quantized", strategy="tensor"), Quantization(layout="int8")),
        (tensors("naive-quantized", type="float"), Quantization(layout="fp8")),
        (tensors("pack-quantized"), Quantization(layout="int8-packed")),
        ({**tensors("float-quantized", type="float"), "sparsity_config": {}}, Quantization(layout="fp8")),
    ],
)
def test_known_ones(config: Any, expected: Quantization | None) -> None:
    assert parsed(config) == expected
    assert parse_config({**SMALL, "quantization_config": config}, FILE).quantization == expected


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"bits": 4}, "quantization_config.quant_method is missing"),
        ({**AWQ, "quant_method": "bitsandbytes"}, "quantization_config.quant_method 'bitsandbytes' is not supported"),
        ({**AWQ, "bits": 3}, "quantization_config.bits 3 is not supported; supported: 4"),
        ({**AWQ, "bits": None}, "quantization_config.bits is missing"),
        ({**AWQ, "group_size": -1}, "quantization_config.group_size -1 is not supported; supported: 32, 64, 128"),
        ({**AWQ, "group_size": True}, "quantization_config.group_size"),
        ({**AWQ, "zero_point": False}, "quantization_config.zero_point"),
        ({**AWQ, "version": "gemv"}, "quantization_config.version"),
        ({**GPTQ, "bits": 8}, "quantization_config.bits"),
        ({**GPTQ, "group_size": 16}, "quantization_config.group_size"),
        ({**GPTQ, "desc_act": "yes"}, "quantization_config.desc_act must be true or false"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "quantization_config.checkpoint_format 'marlin'"),
        ({**GPTQ, "format": "marlin"}, "quantization_config.format 'marlin'"),
        (
            {**GPTQ, "format": "gptq_v2", "checkpoint_format": "gptq"},
            "quantization_config.format gptq_v2 is not quantization_config.checkpoint_format gptq",
        ),
        ({**AWQ, "format": "gemv"}, "quantization_config.format 'gemv'"),
        ({**GPTQ, "lm_head": True}, "quantization_config.lm_head"),
        ({**GPTQ, "dynamic": {"-:.*": {}}}, "quantization_config.dynamic"),
        ({**FP8, "weight_block_size": [128, 128]}, "quantization_config.weight_block_size"),
        (tensors("marlin-24"), "quantization_config.format"),
        (tensors("int-quantized", num_bits=4), "quantization_config.config_groups.group_0.weights.num_bits 4"),
        (tensors("int-quantized", strategy="group"), "config_groups.group_0.weights.strategy 'group'"),
        (tensors("int-quantized", symmetric=False), "config_groups.group_0.weights.symmetric"),
        (tensors("float-quantized"), "weights.type int"),
        (tensors("int-quantized", targets=["re:.*down_proj"]), "config_groups.group_0.targets"),
        ({**tensors("int-quantized"), "config_groups": {}}, "config_groups has 0 groups"),
        ({**tensors("int-quantized"), "kv_cache_scheme": {"num_bits": 8}}, "quantization_config.kv_cache_scheme"),
        ({**tensors("int-quantized"), "sparsity_config": {"format": "sparse"}}, "sparsity_config.format"),
        ("awq", "quantization_config must be an object"),
    ],
)
def test_others_are_refused_by_the_fields_name(config: Any, reason: str) -> None:
    with pytest.raises(BadModelFile) as refused:
        parsed(config)
    assert str(FILE) in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "quantization",
    [
        Quantization(layout="awq", group_size=32),
        Quantization(layout="gptq", group_size=128, desc_act=True, zeros_less_one=True),
        Quantization(layout="gptq", group_size=64),
        Quantization(layout="int8"),
        Quantization(layout="int8-packed"),
        Quantization(layout="fp8"),
    ],
)
def test_what_we_write_is_read_as_the_same(quantization: Quantization) -> None:
    assert parsed(to_quantization_config(quantization)) == quantization


def test_a_manifest_of_a_plain_model_has_no_word_of_it() -> None:
    """An older release refuses a field that it does not know."""
    assert b"quantization" not in msgspec.json.encode(parse_config(SMALL, FILE))
