"""The default model quantised: what calibration is worth on a text that it has not seen."""

from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from bench.quality import BASELINE, ENGINES, compare, text_log_probs, text_token_ids
from services.worker.engine.cpu import CpuEngine
from services.worker.quantize.command import quantise_model
from services.worker.quantize.quantizer import Recipe
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.stored_models import smollm2

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("ARCHITECTURE.md", "operations.md"))[:24_000]

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]


def log_probs(model: StoredModel) -> Tensor:
    """Of bench/data/quality.txt."""
    return text_log_probs(CpuEngine.load(model, ENGINES[BASELINE]), text_token_ids(model))


@cache
def exact() -> Tensor:
    return log_probs(smollm2())


def divergence(folder: Path, recipe: Recipe, name: str) -> float:
    """From the model in bfloat16, in nats a token."""
    quantise_model(smollm2(), recipe, TEXT, folder / name)
    model = ModelRepository(folder / "models").add(inspect_path(folder / name), name)
    return compare(log_probs(model), exact(), text_token_ids(model)).divergence


def test_four_bits(tmp_path: Path) -> None:
    plain = divergence(tmp_path, Recipe("gptq", 64, calibrated=False), "plain")
    assert divergence(tmp_path, Recipe("awq", 64), "awq") < 0.55 * plain
    assert divergence(tmp_path, Recipe("gptq", 64, desc_act=True), "ordered") < 0.65 * plain
    assert divergence(tmp_path, Recipe("gptq", 64), "gptq") < 0.65 * plain


def test_eight_bits(tmp_path: Path) -> None:
    assert divergence(tmp_path, Recipe("w8a16"), "int8") < 0.005
    assert divergence(tmp_path, Recipe("fp8"), "fp8") < 0.02
