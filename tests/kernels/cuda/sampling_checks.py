"""What sampling must do, wherever it is loaded: for sanitizers and planted bugs (see emulator/sanitized.py)."""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.cuda.module import LoadKernels
from kernels.sampling import cpu, reference
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits
from kernels.sampling.rows import NOT_FINITE
from tests.kernels.emulator.sanitized import Check
from tests.kernels.sampling_rows import SampledRow, mask_of, positions_of, random_logits, row

SIZE = 1003  # of most vocabularies: its last chunk of tokens is no whole one

MIXED = [
    row(temperature=0.0),
    row(seed=1, top_p=0.3),
    row(seed=2, top_p=0.9, top_k=70, logprobs=5),
    row(seed=3, min_p=0.01, history=[3, 9, 9, 4, 9, 3], num_prompt_tokens=2, frequency_penalty=0.4, logprobs=0),
    row(seed=4, grammar_mask=mask_of(range(0, SIZE, 3), SIZE), logit_bias={3: 5.0, 4: 100.0}, bad_token_ids=(6,)),
    row(seed=9, grammar_mask=mask_of(range(1, SIZE, 97), SIZE), bad_token_ids=(1,)),
    row(temperature=0.0, history=[5] * 70, repetition_penalty=1.4, logit_bias={5: 3.0, 6: 1.0}, logprobs=40),
]


def check_rows(load: LoadKernels, logits: torch.Tensor, rows: Sequence[SampledRow]) -> Sampling:
    """Against the CPU's sampler, which is tested against the reference. logits: of any dtype, [rows, vocabulary]."""
    limits = Limits(logits.shape[1], len(rows), 80 * len(rows), max_biases=20 * len(rows), max_top=45)
    sampling = Sampling(load, logits.dtype, limits)
    result = sampling(logits, rows, positions_of(rows))
    wanted = cpu.sample(logits.float().clone(), rows, positions_of(rows))
    assert result.errors == wanted.errors == {}
    assert result.tokens.tolist() == wanted.tokens.tolist()
    for report, other in zip(result.logprobs, wanted.logprobs, strict=True):
        assert (report is None) == (other is None)
        if report is not None and other is not None:
            assert (report.rank, report.top_ids) == (other.rank, other.top_ids)
            logprobs = [report.logprob, *report.top_logprobs]
            np.testing.assert_allclose(logprobs, [other.logprob, *other.top_logprobs], rtol=1e-5, atol=2e-6)
    return sampling


def random_rows(count: int, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    """Logits: dtype [count, size]."""
    return torch.from_numpy(np.stack([random_logits(seed, size, spread) for seed in range(count)])).to(dtype)


def mixed_rows(load: LoadKernels) -> None:
    """Rows of all kinds."""
    check_rows(load, random_rows(len(MIXED), SIZE, 1.0, torch.bfloat16), MIXED)


def flat_rows(load: LoadKernels) -> None:
    """Thousands of tokens alike, so that filters cut among many, and equals are many."""
    rows = [
        row(seed=5, top_p=0.02),
        row(seed=6, top_k=1000, top_p=0.5),
        row(seed=7, temperature=2.0, min_p=0.7),
        row(seed=8, top_k=4097, logprobs=30),
        row(temperature=0.0, logprobs=45),
    ]
    check_rows(load, random_rows(len(rows), 4098, 0.1, torch.float32), rows)
    check_rows(load, torch.zeros(len(rows), 4098), rows)
    signs = torch.full((len(rows), 4098), -0.0)
    signs[:, 9:] = 0.0  # equal all the same
    check_rows(load, signs, rows)


def drawn_rows(load: LoadKernels) -> None:
    """Filters with temperatures, masses that lie far down, a nucleus that ends between equals, many tokens a thread."""
    rows = [row(seed=seed, temperature=3.0, top_k=5) for seed in range(12)]
    rows += [row(seed=seed, temperature=2.0, top_p=0.9) for seed in range(12)]
    rows += [row(seed=seed, top_p=0.4, logit_bias={7: 9.0, 8: 9.0, 9: 8.5}) for seed in range(12)]
    check_rows(load, random_rows(len(rows), SIZE, 3.0, torch.float32), rows)
    rows = [row(seed=seed, top_p=0.5) for seed in range(24)]
    check_rows(load, torch.zeros(len(rows), 4), rows)
    rows = [row(seed=seed) for seed in range(3)]
    check_rows(load, torch.zeros(len(rows), 49_152), rows)


def biased_and_penalized_rows(load: LoadKernels) -> None:
    """Tokens with a bias, with penalties, with both; once and often in the history, in prompt and output."""
    shared = {
        "history": [3, 3, 8, 9, 4, 5, 5, 5, 3],
        "num_prompt_tokens": 4,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.2,
        "logit_bias": {3: 2.0, 5: 9.0, 6: -1.0, 8: 1.0},
    }
    rows = [row(seed=seed, **shared) for seed in range(12)] + [row(temperature=0.0, **shared)]
    logits = random_rows(len(rows), 12, 1.0, torch.float32)
    sampling = check_rows(load, logits, rows)
    for index, one in enumerate(rows):  # each row has its own cells: on a device, blocks run at the same time
        edited = sorted({3, 4, 5, 6, 8, 9})
        cells = sampling.cells[index].view(torch.float32)[edited].numpy()
        np.testing.assert_allclose(cells, reference.modified(logits[index].numpy(), one, 0)[edited], rtol=1e-6)
    rows = [row(temperature=0.0, presence_penalty=1.0, history=[5, 0], num_prompt_tokens=1)]
    check_rows(load, torch.zeros(1, 12), rows)  # where the output begins
    # below zero a penalty multiplies: what was the least likely becomes the likeliest, and the other way
    rows = [
        row(temperature=0.0, repetition_penalty=0.5, history=[7]),
        row(temperature=0.0, repetition_penalty=2.0, history=[0, 1, 2, 3, 5]),
    ]
    check_rows(load, torch.tensor([[-4.0, -3, -5, -4, -4.5, -4, -5, -6]] * 2), rows)


def broken_rows(load: LoadKernels) -> None:
    """They fail alone."""
    logits = random_rows(5, SIZE, 3.0, torch.float32)
    logits[1, SIZE - 1], logits[2, 0] = float("nan"), float("inf")
    rows = [
        row(seed=1),
        row(history=[SIZE], presence_penalty=1.0),
        row(temperature=0.0),
        row(history=[1, SIZE, *[2] * 511, -1], presence_penalty=1.0),  # the same thread looks at both
        row(seed=2, grammar_mask=mask_of([], SIZE)),
    ]
    limits = Limits(SIZE, 5, max_history_tokens=1000, max_biases=1)
    result = Sampling(load, torch.float32, limits)(logits, rows, positions_of(rows))
    assert result.errors == {
        1: NOT_FINITE,
        2: NOT_FINITE,
        3: f"token id {SIZE} is not in the vocabulary of {SIZE}",
        4: "the request's parameters leave no token to sample",
    }
    assert result.tokens[0] == cpu.sample(logits[:1].clone(), rows[:1], positions_of(rows[:1])).tokens[0]


CHECKS: list[Check] = [mixed_rows, flat_rows, drawn_rows, biased_and_penalized_rows, broken_rows]
