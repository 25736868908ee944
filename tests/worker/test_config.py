"""Options that depend on one another."""

from pathlib import Path
from typing import Literal

import pytest

from services.worker.config import WorkerConfig
from services.worker.loading import load_engine
from shared.service import StartError


@pytest.mark.parametrize(("engine", "expected"), [("cpu", 512), ("cuda", 8192), ("fake", 8192)])
def test_a_step_of_a_cpu_takes_fewer_tokens(engine: Literal["cpu", "cuda", "fake"], expected: int) -> None:
    assert WorkerConfig(engine=engine).max_num_batched_tokens == expected
    assert WorkerConfig(engine=engine, max_num_batched_tokens=7).max_num_batched_tokens == 7


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (WorkerConfig(engine="cpu", kv_cache_dtype="fp8"), "kv_cache_dtype fp8 is for engine cuda, not cpu"),
        (WorkerConfig(engine="fake", kv_cache_dtype="fp8"), "kv_cache_dtype fp8 is for engine cuda, not fake"),
        (WorkerConfig(engine="cuda", quantization="int8"), "quantization int8 is for engine cpu, not cuda"),
    ],
)
def test_options_of_another_engine_are_refused(config: WorkerConfig, message: str) -> None:
    with pytest.raises(StartError, match=message):
        load_engine(config)


def test_a_model_repository_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=f"--model-repository: {tmp_path}/file/models: Not a directory"):
        load_engine(WorkerConfig(model_repository=str(tmp_path / "file/models")))
