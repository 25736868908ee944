"""The CUDA sampler in the emulator and the CPU's take the same tokens, but for draws between nearly equal keys."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling.cuda import DTYPES
from kernels.sampling.rows import Sampled
from tests.kernels.samplers import EmulatedSampler, sample_by_torch
from tests.kernels.sampling_cases import LOGITS, MASKED, PARAMETERS, assert_same_tokens
from tests.kernels.sampling_rows import SampledRow, mask_of, random_logits, row, rows

LARGE, MIDDLE = 128_256, 5003
NARROW = [dtype for dtype in DTYPES if dtype != torch.float32]


def assert_agrees(logits: torch.Tensor, batch: list[SampledRow]) -> None:
    """Tokens and reports. logits: of any dtype, [rows, vocabulary]."""
    numbers = logits.float().numpy()
    found, expected = EmulatedSampler(logits.dtype)(numbers, *batch), sample_by_torch(numbers, *batch)
    assert_same_tokens(found, expected, numbers, batch)
    assert_same_reports(found, expected)


def assert_same_reports(found: Sampled, expected: Sampled) -> None:
    """Of rows with the same token."""
    for index in np.flatnonzero(found.tokens == expected.tokens).tolist():
        ours, theirs = found.logprobs[index], expected.logprobs[index]
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours.rank, ours.top_ids) == (theirs.rank, theirs.top_ids)
            pairs = [ours.logprob, *ours.top_logprobs], [theirs.logprob, *theirs.top_logprobs]
            np.testing.assert_allclose(*pairs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("parameters", [*PARAMETERS, MASKED], ids=lambda one: " ".join(one) or "none")
def test_the_same_tokens_over_a_whole_vocabulary(kind: str, parameters: dict[str, object]) -> None:
    batch = [row(seed=977 * seed + 5, position=seed, **parameters) for seed in range(3)]
    assert_agrees(torch.from_numpy(np.stack([LOGITS[kind](seed) for seed in range(len(batch))])), batch)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("kind", ["wide", "narrow", "peaked"])
def test_the_same_tokens_from_narrow_logits(dtype: torch.dtype, kind: str) -> None:
    batch = [row(seed=(seed << 33) - 7, position=10 + seed, **parameters) for seed, parameters in enumerate(PARAMETERS)]
    batch += [row(seed=1, logprobs=20), row(temperature=0.0, logprobs=5)]
    logits = np.stack([LOGITS[kind](seed) for seed in range(len(batch))])
    assert_agrees(torch.from_numpy(logits).to(dtype), batch)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.lists(rows(MIDDLE), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
)
def test_the_same_tokens_whatever_the_parameters(
    batch: list[SampledRow], seed: int, dtype: torch.dtype, spread: float
) -> None:
    logits = np.stack([random_logits(seed + index, MIDDLE, spread) for index in range(len(batch))])
    assert_agrees(torch.from_numpy(logits).to(dtype), batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_tokens_of_the_largest_vocabularies(dtype: torch.dtype) -> None:
    """The last tokens among them: their words of a mask, their edits, their random numbers."""
    last = list(range(LARGE - 40, LARGE))
    edits = {"history": [*last, *last[:9], 5], "num_prompt_tokens": 20, "frequency_penalty": -2.0}
    batch = [
        row(temperature=0.0, logit_bias={LARGE - 1: 30.0}),
        row(seed=2**40, grammar_mask=mask_of(last, LARGE)),
        row(seed=5, position=900, top_p=0.9, temperature=0.8, repetition_penalty=0.5, **edits),
        row(seed=6, position=901, top_k=50, logprobs=20, logit_bias=dict.fromkeys(last, 12.0)),
        row(seed=7, min_p=0.02),
    ]
    logits = np.stack([random_logits(seed, LARGE) for seed in range(len(batch))])
    assert_agrees(torch.from_numpy(logits).to(dtype), batch)
