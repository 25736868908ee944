"""What sampling must do, wherever it is loaded: for sanitizers and planted bugs (see emulator/sanitized.py).

Noise and the edges of filters have checks of their own: sampling_edges.py.
"""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.cuda.module import LoadKernels
from kernels.sampling import cpu, reference
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits
from kernels.sampling.rows import NOT_FINITE, NOTHING_LEFT, Row
from tests.kernels.arrays import zeros_without_memory
from tests.kernels.emulator.sanitized import Check
from tests.kernels.sampling_rows import SampledRow, mask_of, positions_of, random_logits, row

SIZE = 1003  # of most vocabularies: its last chunk of tokens is no whole one
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

MIXED = [
    row(temperature=0.0),
    row(seed=1, top_p=0.3),
    row(seed=2, top_p=0.9, top_k=70, logprobs=5),
    row(seed=3, min_p=0.01, history=[3, 9, 9, 4, 9, 3], num_prompt_tokens=2, frequency_penalty=0.4, logprobs=0),
    row(seed=4, grammar_mask=mask_of(range(0, SIZE, 3), SIZE), logit_bias={3: 5.0, 4: 100.0}, bad_token_ids=(6,)),
    row(seed=9, grammar_mask=mask_of(range(1, SIZE, 97), SIZE), bad_token_ids=(1,), logprobs=2),
    row(temperature=0.0, history=[5] * 70, repetition_penalty=1.4, logit_bias={5: 3.0, 6: 1.0}, logprobs=40),
]


def new_sampling(load: LoadKernels, logits: torch.Tensor, rows: Sequence[SampledRow]) -> Sampling:
    """With room for these rows. What it keeps on the device holds no numbers."""
    limits = Limits(
        vocab_size=logits.shape[1],
        max_rows=len(rows),
        max_history_tokens=1 + sum(len(one.history) for one in rows if one.history is not None),
        max_biases=1 + sum(len(one.sampling.logit_bias) for one in rows),
        max_top=45,
    )
    sampling = Sampling(load, logits.dtype, limits)
    sampling.cells.fill_(-1)
    return sampling


def check_rows(load: LoadKernels, logits: torch.Tensor, rows: Sequence[SampledRow]) -> Sampling:
    """Against the CPU's sampler, which is tested against the reference. logits: of any dtype, [rows, vocabulary]."""
    sampling = new_sampling(load, logits, rows)
    check_step(sampling, logits, rows)
    return sampling


def check_step(sampling: Sampling, logits: torch.Tensor, rows: Sequence[SampledRow]) -> None:
    """A step over rows none of which fails."""
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


def random_rows(count: int, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    """Logits: dtype [count, size]."""
    return torch.from_numpy(np.stack([random_logits(seed, size, spread) for seed in range(count)])).to(dtype)


# ---- rows of every kind ---------------------------------------------------------------------------------------------


def mixed_rows(load: LoadKernels) -> None:
    """Rows of all kinds."""
    for dtype in (BF16, FP16):
        check_rows(load, random_rows(len(MIXED), SIZE, 1.0, dtype), MIXED)


def flat_rows(load: LoadKernels) -> None:
    """Thousands of tokens alike, so that filters cut among many, and equals are many."""
    rows = [
        row(seed=5, top_p=0.02),
        row(seed=6, top_k=1000, top_p=0.5),
        row(seed=7, temperature=2.0, min_p=0.7),
        row(seed=8, top_k=4097, logprobs=30),
        row(temperature=0.0, logprobs=45),
    ]
    check_rows(load, random_rows(len(rows), 4098, 0.1, FP32), rows)
    check_rows(load, torch.zeros(len(rows), 4098), rows)
    signs = torch.full((len(rows), 4098), -0.0)
    signs[:, 9:] = 0.0  # equal all the same
    signs[:, :3] = -1.0
    check_rows(load, signs, rows)
    late = torch.zeros(2, 4098)
    late[:, 3000:] = late[1, 100:120] = 1.0  # the equals that a report splits have ids of two digits
    check_rows(load, late, [row(temperature=0.0, logprobs=45)] * 2)


def drawn_rows(load: LoadKernels) -> None:
    """Filters with temperatures, masses that lie far down, a nucleus that ends between equals, many tokens a thread."""
    rows = [row(seed=seed, temperature=3.0, top_k=5) for seed in range(12)]
    rows += [row(seed=seed, temperature=2.0, top_p=0.9) for seed in range(12)]
    rows += [row(seed=seed, top_p=0.4, logit_bias={7: 9.0, 8: 9.0, 9: 8.5}) for seed in range(12)]
    check_rows(load, random_rows(len(rows), SIZE, 3.0, FP32), rows)
    rows = [row(seed=seed, top_p=0.5) for seed in range(24)]
    check_rows(load, torch.zeros(len(rows), 4), rows)
    rows = [row(seed=seed) for seed in range(3)]
    check_rows(load, torch.zeros(len(rows), 49_152), rows)


def long_rows(load: LoadKernels) -> None:
    """Threads with more chunks of tokens than they read ahead: what is likely lies in the last ones too."""
    size = 20_003
    rows = [
        row(temperature=0.0, logprobs=3),
        row(temperature=0.0, history=[19_999, 7, 20_002], repetition_penalty=1.5),
        row(temperature=0.0, logit_bias={20_001: 50.0}),
        row(temperature=0.0, grammar_mask=mask_of([17, 4096, 12_288, 16_384, 20_002], size)),
        row(seed=4, top_k=40),
    ]
    for dtype in (BF16, FP32):
        logits = random_rows(len(rows), size, 2.0, dtype)
        logits[0, [4100, 8200, 12_300, 16_400]] = torch.tensor([20.0, 21.0, 22.0, 23.0], dtype=dtype)
        logits[1, [20_002, 16_500]] = torch.tensor([15.0, 14.0], dtype=dtype)  # of which one is penalised
        check_rows(load, logits, rows)


def rows_apart(load: LoadKernels) -> None:
    """Rows with gaps between them, that hold what would be the likeliest, and rows that begin at any place."""
    rows = [row(temperature=0.0), row(seed=1), row(seed=2, top_p=0.5, logprobs=1)]
    for dtype, stride, begin in ((FP32, 1001, 0), (FP32, 1004, 2), (BF16, 1008, 0), (FP16, 1008, 4)):
        memory = torch.full((begin + 3 * stride,), 60_000.0, dtype=dtype)
        logits = memory[begin:].view(3, stride)[:, :999]
        logits.copy_(random_rows(3, 999, 3.0, dtype))
        check_rows(load, logits, rows)


def far_rows(load: LoadKernels) -> None:
    """Two rows with more than 2^32 numbers between them, for which there is no memory."""
    rows = [row(temperature=0.0), row(seed=1)]
    logits = zeros_without_memory((2, 2**32 + 64), BF16)[:, :100]
    logits.copy_(random_rows(2, 100, 3.0, BF16))
    check_rows(load, logits, rows)


def negative_rows(load: LoadKernels) -> None:
    """No logit is above zero."""
    rows = [row(temperature=0.0, logprobs=3), *[row(seed=seed, temperature=0.5, logprobs=2) for seed in range(6)]]
    check_rows(load, random_rows(len(rows), SIZE, 2.0, FP32) - 30, rows)
    check_rows(load, random_rows(len(rows), 9, 2.0, FP32) - 30, rows)


# ---- bias, penalties, reports ---------------------------------------------------------------------------------------


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
    logits = random_rows(len(rows), 12, 1.0, FP32)
    sampling = check_rows(load, logits, rows)
    for index, one in enumerate(rows):  # each row has its own cells: on a device, blocks run at the same time
        check_cells(sampling, index, logits[index], one, [3, 4, 5, 6, 8, 9])
    rows = [row(temperature=0.0, presence_penalty=1.0, history=[5, 0], num_prompt_tokens=1)]
    check_rows(load, torch.zeros(1, 12), rows)  # where the output begins
    # below zero a penalty multiplies: what was the least likely becomes the likeliest, and the other way
    rows = [
        row(temperature=0.0, repetition_penalty=0.5, history=[7]),
        row(temperature=0.0, repetition_penalty=2.0, history=[0, 1, 2, 3, 5]),
    ]
    check_rows(load, torch.tensor([[-4.0, -3, -5, -4, -4.5, -4, -5, -6]] * 2), rows)


def check_cells(sampling: Sampling, index: int, logits: torch.Tensor, one: Row, edited: list[int]) -> None:
    """What the newest step made of these tokens' logits, by bias and penalties. logits: the row's."""
    cells = sampling.cells[index].view(FP32)[edited].numpy()
    np.testing.assert_allclose(cells, reference.modified(logits.float().numpy(), one, 0)[edited], rtol=1e-6)


def different_edits(load: LoadKernels) -> None:
    """Rows with biases and histories of their own; more of each than a block has threads."""
    many, others = list(range(100, 700)), list(range(600, 1003))
    rows = [
        row(temperature=0.0, logit_bias={token: 0.01 * token for token in range(699)} | {699: -50.0}),
        row(temperature=0.0, logit_bias={3: 9.0, 5: 11.0}, history=[5, 5, 7], frequency_penalty=1.5),
        row(seed=1, history=many + others + [9], num_prompt_tokens=600, presence_penalty=1.0, repetition_penalty=1.2),
        row(temperature=0.0, logit_bias={5: 9.0, 3: 11.0}, history=[3, 3], presence_penalty=3.0),
        row(temperature=0.0, history=list(range(600)), presence_penalty=50.0),
    ]
    logits = random_rows(len(rows), SIZE, 1.0, FP32)
    logits[0, 699] = logits[4, 550] = 30.0
    sampling = check_rows(load, logits, rows)
    check_cells(sampling, 0, logits[0], rows[0], list(range(700)))
    check_cells(sampling, 1, logits[1], rows[1], [3, 5, 7])
    check_cells(sampling, 2, logits[2], rows[2], [9, *range(100, SIZE)])


def reported_rows(load: LoadKernels) -> None:
    """What is reported is of the logits as they came, whatever mask, bias and penalties make of them."""
    allowed = mask_of(range(500, SIZE), SIZE)
    rows = [
        row(seed=1, grammar_mask=allowed, logprobs=20),
        row(temperature=0.0, logit_bias={9: -50.0, 700: 60.0}, logprobs=4),
        row(temperature=0.0, history=[9], repetition_penalty=5.0, logprobs=45),
        row(seed=2, logprobs=45, top_k=3),
    ]
    logits = random_rows(len(rows), SIZE, 2.0, FP32)
    logits[:, 9] = 12.0
    check_rows(load, logits, rows)
    check_rows(load, logits[:, :5].contiguous(), [row(seed=seed, logprobs=45) for seed in range(len(rows))])
    # so far apart that a difference is infinite
    wide = torch.tensor([[3.4e38, -3.4e38, 3.3e38, 0.0, -3.4e38, -3.3e38]] * 2)
    check_rows(load, wide, [row(temperature=0.0, logprobs=6), row(temperature=0.0, bad_token_ids=(0, 2), logprobs=5)])
    check_rows(load, wide, [row(bad_token_ids=(0, 2, 3, 4, 5), logprobs=1), row(logprobs=3)])


# ---- rows that fail -------------------------------------------------------------------------------------------------


def broken_rows(load: LoadKernels) -> None:
    """They fail alone, and in this step alone."""
    stranger = f"token id {SIZE} is not in the vocabulary of {SIZE}"
    nothing = mask_of([], SIZE)
    cases: list[tuple[SampledRow, dict[int, float], str | None]] = [
        (row(seed=1), {}, None),
        (row(history=[SIZE], presence_penalty=1.0), {SIZE - 1: float("nan")}, NOT_FINITE),
        (row(temperature=0.0), {0: float("inf")}, NOT_FINITE),
        # the same thread looks at both
        (row(history=[1, SIZE, *[2] * 511, -1], presence_penalty=1.0), {}, stranger),
        (row(seed=2, grammar_mask=nothing), {}, NOTHING_LEFT),
        (row(temperature=0.0, logprobs=2), {700: -float("inf")}, NOT_FINITE),
        (row(history=[5, -1], presence_penalty=1.0), {}, stranger.replace(str(SIZE), "-1", 1)),
        # two threads look at one each
        (row(history=[*[5] * 40, SIZE, -3], presence_penalty=1.0), {}, stranger),
        (row(history=[*[5] * 600, SIZE], presence_penalty=1.0), {}, stranger),
        (row(seed=3, logit_bias={8: float("inf")}), {}, NOTHING_LEFT),
        (row(temperature=0.0, grammar_mask=nothing, logprobs=1), {}, NOTHING_LEFT),
    ]
    rows = [one for one, _, _ in cases]
    logits = random_rows(len(rows), SIZE, 3.0, FP32)
    for index, (_, changes, _) in enumerate(cases):
        for token, value in changes.items():
            logits[index, token] = value
    sampling = new_sampling(load, logits, rows)
    result = sampling(logits, rows, positions_of(rows))
    wanted = cpu.sample(logits.clone(), rows, positions_of(rows))
    assert result.errors == {index: reason for index, (_, _, reason) in enumerate(cases) if reason} == wanted.errors
    assert result.tokens[0] == wanted.tokens[0]
    good = [row(seed=index) for index in range(len(rows))]
    check_step(sampling, random_rows(len(rows), SIZE, 3.0, FP32), good)


CHECKS: list[Check] = [
    mixed_rows,
    flat_rows,
    drawn_rows,
    long_rows,
    rows_apart,
    negative_rows,
    biased_and_penalized_rows,
    different_edits,
    reported_rows,
    broken_rows,
]
LARGE: list[Check] = [far_rows]
