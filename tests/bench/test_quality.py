"""bench.quality on a tiny model: every token's log-probabilities, and what is said of two of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.quality import BASELINE, ENGINES, ROWS_OF_A_STEP, TEXT, compare, text_log_probs
from services.worker.engine.cpu import CpuEngine
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder


def test_each_token_is_predicted_from_those_before_it(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "LlamaForCausalLM")
    options = Options(kv_cache_memory_bytes=8 << 20)
    token_ids = np.random.default_rng(1).integers(3, 384, ROWS_OF_A_STEP + 20).astype(np.int32)
    log_probs = text_log_probs(CpuEngine.load(model, options), token_ids)
    assert log_probs.shape == (len(token_ids) - 1, model.config.vocab_size)
    for position in (0, 1, ROWS_OF_A_STEP - 1, ROWS_OF_A_STEP, len(token_ids) - 2):
        recorder = LogitsRecorder(CpuEngine.load(model, options))
        generate(recorder, [token_ids[: position + 1].tolist()], greedy(1))
        torch.testing.assert_close(log_probs[position], recorder.logits[0][0].log_softmax(dim=0))


def test_figures_of_known_distributions() -> None:
    token_ids = np.array([0, 1, 0], dtype=np.int32)
    baseline = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    same = compare(baseline, baseline, token_ids)
    assert (same.agreement, same.divergence) == (1.0, 0.0)
    assert same.perplexity == pytest.approx((0.75 * 0.5) ** -0.5)
    other = compare(torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log(), baseline, token_ids)
    assert other.agreement == 0.5
    assert other.divergence == pytest.approx((0.25 * np.log(1 / 3) + 0.75 * np.log(3)) / 2)


def test_the_text_and_the_engines_are_there() -> None:
    assert len(TEXT.read_text().split()) > 1500
    assert next(iter(ENGINES)) == BASELINE
