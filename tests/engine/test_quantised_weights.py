"""A model with 4- and 8-bit weights on the CPU: the dequantised model, and a line that says so."""

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from services.worker.config import WorkerConfig
from services.worker.engine.cpu import CpuEngine
from services.worker.loading import load_engine
from shared.quantization.scheme import Quantization
from shared.repository.export import export_model
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder
from tests.repository.quantised_folders import make_quantised_model

KV_BYTES = 8 << 20
PROMPT = list(range(3, 40))
AWQ = Quantization(layout="awq", group_size=64)


@pytest.mark.parametrize("quantization", [AWQ, Quantization(layout="fp8")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_computes_what_the_dequantised_model_does(tmp_path: Path, quantization: Quantization, dtype: str) -> None:
    make_quantised_model(tmp_path / "source", quantization, "Qwen2ForCausalLM")
    repository = ModelRepository(tmp_path / "models")
    model = repository.add(inspect_path(tmp_path / "source"), "tiny")
    export_model(model, tmp_path / "plain", "float32")
    plain = repository.add(inspect_path(tmp_path / "plain"), "plain")
    logits = []
    for each in (model, plain):
        recorder = LogitsRecorder(CpuEngine.load(each, Options(dtype=dtype, kv_cache_memory_bytes=KV_BYTES)))
        generate(recorder, [PROMPT], greedy(3))
        logits.append(torch.cat(recorder.logits))
    assert torch.isfinite(logits[0]).all()
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)  # torch adds in the order of an address


def test_the_worker_says_that_it_dequantises(tmp_path: Path) -> None:
    make_quantised_model(tmp_path / "source", AWQ)
    ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "source"), "tiny")
    config = WorkerConfig(
        model="tiny",
        model_repository=str(tmp_path / "models"),
        engine="cpu",
        dtype="bfloat16",
        kv_cache_memory_bytes=KV_BYTES,
    )
    with capture_logs() as logs:
        load_engine(config)
    told = [line for line in logs if line["event"] == "quantised weights are dequantised on a CPU"]
    assert [(line["layout"], line["dtype"]) for line in told] == [("awq", "bfloat16")]
