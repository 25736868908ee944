"""Finding a family's file, and weights that do not fit their configuration."""

import pytest
import torch

from services.worker.models.parameters import Parameters, WeightsError
from services.worker.models.registry import UnknownArchitecture, builder_of
from shared.repository.config import ARCHITECTURES

SHAPES = {"a.weight": (2, 3), "input_layernorm.weight": (3,)}
WEIGHTS = {"a.weight": torch.ones(2, 3), "input_layernorm.weight": torch.ones(3)}


def test_every_architecture_that_the_repository_accepts_has_a_file() -> None:
    for architecture, family in ARCHITECTURES.items():
        assert builder_of(architecture).__module__ == f"services.worker.models.{family}"


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitecture) as refused:
        builder_of("GPT2LMHeadModel")
    for name in ("GPT2LMHeadModel", *ARCHITECTURES):
        assert name in str(refused.value)


def test_parameters_are_converted_and_taken_once() -> None:
    parameters = Parameters(WEIGHTS.items(), SHAPES, torch.bfloat16)
    assert parameters.take("a.weight").dtype == torch.bfloat16
    assert parameters.take("input_layernorm.weight").dtype == torch.float32
    with pytest.raises(KeyError):
        parameters.take("a.weight")


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(WeightsError, match=r"missing.*input_layernorm.weight"):
        Parameters([("a.weight", WEIGHTS["a.weight"])], SHAPES, torch.float32)
    with pytest.raises(WeightsError, match=r"unexpected tensor b.weight"):
        Parameters([("b.weight", WEIGHTS["a.weight"])], SHAPES, torch.float32)
    with pytest.raises(WeightsError, match=r"a.weight has shape \(3, 2\)"):
        Parameters([("a.weight", torch.ones(3, 2))], SHAPES, torch.float32)
