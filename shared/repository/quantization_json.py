"""The quantization_config of a config.json: read, checked, and refused by the name of the field that is not ours.

Lists of modules that were left alone (modules_to_not_convert, ignore) are not read: the weight files show it. What it
says of activations is not read either: they keep their 16 bits, which is never less exact.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.quantization.scheme import GROUP_SIZES, Layout, Quantization
from shared.repository.errors import BadModelFile
from shared.repository.fields import Fields

_NAME = "quantization_config"
_FORMATS: dict[str, Layout] = {
    "int-quantized": "int8",
    "naive-quantized": "int8",
    "pack-quantized": "int8-packed",
    "float-quantized": "fp8",
}
_FORMAT_OF = {layout: name for name, layout in _FORMATS.items() if name != "naive-quantized"}


def parse_quantization(document: Mapping[str, Any], file: Path) -> Quantization | None:
    """What a config.json says of its model's quantised matrices; None: there are none.

    file names the source in messages. Raises UnsupportedModel, BadModelFile.
    """
    fields = Fields(document, file).section(_NAME)
    if not fields.document:
        return None
    method = fields.expect("quant_method", None, *_PARSERS)
    return _PARSERS[method](fields)


def to_quantization_config(quantization: Quantization) -> dict[str, Any]:
    """The quantization_config that other tools read as the same, but for int8: where activations keep their 16 bits
    they take weights for int8-packed, whatever the format says."""
    if quantization.layout == "awq":
        group_size = {"bits": 4, "group_size": quantization.group_size}
        return {"quant_method": "awq", "version": "gemm", "zero_point": True, **group_size}
    if quantization.layout == "gptq":
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": quantization.group_size,
            "desc_act": quantization.desc_act,
            "sym": False,
            "checkpoint_format": "gptq" if quantization.zeros_less_one else "gptq_v2",
        }
    kind = "float" if quantization.layout == "fp8" else "int"
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT_OF[quantization.layout],
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def _awq(fields: Fields) -> Quantization:
    fields.expect("bits", None, 4)
    fields.expect("zero_point", True, True)
    for name in ("version", "format"):  # of older and of newer files
        if fields.text(name, "gemm").lower() != "gemm":
            fields.expect(name, None, "gemm")
    return Quantization(layout="awq", group_size=fields.expect("group_size", None, *GROUP_SIZES))


def _gptq(fields: Fields) -> Quantization:
    fields.expect("bits", None, 4)
    fields.expect_none("dynamic", "lm_head", "is_marlin_format")
    fields.expect("pack_dtype", "int32", "int32")
    return Quantization(
        layout="gptq",
        group_size=fields.expect("group_size", None, *GROUP_SIZES),
        desc_act=fields.flag("desc_act", False),
        zeros_less_one=_gptq_format(fields) == "gptq",
    )


def _gptq_format(fields: Fields) -> str:
    """Older files call it checkpoint_format, newer ones format, and many say both."""
    new = fields.expect("format", "gptq", "gptq", "gptq_v2")
    old = fields.expect("checkpoint_format", new, "gptq", "gptq_v2")
    if old != new and fields.document.get("format") is not None:
        raise BadModelFile(fields.file, f"{fields.path}format {new} is not {_NAME}.checkpoint_format {old}")
    return str(old)


def _fp8(fields: Fields) -> Quantization:
    fields.expect_none("weight_block_size", "kv_cache_scheme")
    return Quantization(layout="fp8")


def _compressed_tensors(fields: Fields) -> Quantization:
    layout = _FORMATS[fields.expect("format", None, *_FORMATS)]
    fields.expect_none("kv_cache_scheme", "transform_config")
    fields.section("sparsity_config").expect("format", "dense", "dense")
    groups = fields.section("config_groups")
    if len(groups.document) != 1:
        raise BadModelFile(fields.file, f"{_NAME}.config_groups has {len(groups.document)} groups; one is supported")
    group = groups.section(next(iter(groups.document)))
    group.expect("targets", None, ["Linear"])
    group.expect_none("output_activations")
    weights = group.section("weights")
    weights.expect("num_bits", None, 8)
    weights.expect("symmetric", True, True)
    weights.expect("strategy", None, "channel", "tensor")
    weights.expect("dynamic", False, False)
    kind = weights.expect("type", "int", "int", "float")
    if layout == "int8" and kind == "float":  # naive-quantized holds either
        layout = "fp8"
    if (kind == "float") != (layout == "fp8"):
        raise BadModelFile(fields.file, f"{weights.path}type {kind} is not what {_NAME}.format holds")
    return Quantization(layout=layout)


_PARSERS: dict[str, Callable[[Fields], Quantization]] = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
}
