"""What sampling must do where numbers are rare or nearly equal: noise, and the edges of filters."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cuda.module import LoadKernels
from kernels.sampling import philox, reference
from tests.kernels.cuda.sampling_checks import BF16, FP32, check_rows, random_rows
from tests.kernels.emulator.sanitized import Check
from tests.kernels.sampling_rows import SampledRow, mask_of, random_logits, row

UNLIKELY = -60.0

# Found by trying many: seeds with a token (at position 0) whose random word is 0, and one that a float rounds to 2^32.
LEAST_WORD = (1_343_428, 3)
GREATEST_WORD = (4_696, 376)


def seeds_and_positions(load: LoadKernels) -> None:
    """All bits of a seed count, and where the output is."""
    seeds = (0, 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -1, -(2**63), 0x299F31D0A4093822)
    rows = [row(seed=seed, position=position) for seed in seeds for position in (0, 1, 77, 2**31 - 1)]
    check_rows(load, torch.zeros(len(rows), 203), rows)


def temperatures(load: LoadKernels) -> None:
    """Below and above 1, with every filter."""
    rows = [
        row(seed=seed, temperature=temperature, **filters)
        for temperature in (0.3, 0.7, 1.7)
        for filters in ({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"min_p": 0.1, "top_k": 300, "top_p": 0.9})
        for seed in range(3)
    ]
    check_rows(load, random_rows(len(rows), 300, 1.0, FP32), rows)


def rarest_noise(load: LoadKernels) -> None:
    """The most and the least noise there is: it must be finite, and a draw may skip no token that it could lift."""
    seed, token = LEAST_WORD
    assert philox.words(seed, 0, np.array([token // 4], dtype=np.uint64))[0, token % 4] == 0
    most = philox.gumbel(seed, 0, np.array([token], dtype=np.int64))[0]
    rows, logits = [row(seed=seed)] * 2, torch.full((2, 40), UNLIKELY)
    other = 17
    logits[:, other] = 0.0
    gap = float(most - philox.gumbel(seed, 0, np.array([other], dtype=np.int64))[0])
    logits[0, token], logits[1, token] = -gap + 2e-4, -gap - 2e-4
    assert check_rows(load, logits, rows).tokens.tolist() == [token, other]
    seed, token = GREATEST_WORD
    assert philox.words(seed, 0, np.array([token // 4], dtype=np.uint64))[0, token % 4] >= 2**32 - 128
    logits = torch.full((2, 400), UNLIKELY)
    logits[:, token] = 0.0
    least = float(philox.gumbel(seed, 0, np.array([token], dtype=np.int64))[0])
    gap = least - float(philox.gumbel(seed, 0, np.array([other], dtype=np.int64))[0])
    logits[0, other], logits[1, other] = gap + 2e-4, gap - 2e-4
    assert check_rows(load, logits, [row(seed=seed)] * 2).tokens.tolist() == [other, token]


def near_keys(load: LoadKernels) -> None:
    """The two largest keys differ by little: 2e-5, more than the noise of two samplers may. Either one is the larger,
    and before or after the other."""
    size, rows, logits = 90, [], []
    tokens = np.arange(size, dtype=np.int64)
    for seed in range(24):
        noise = philox.gumbel(seed, 0, tokens)
        second = int(noise.argmax())
        first = (second + 1 + 7 * seed) % size
        for more in (2e-5, -2e-5):
            values = np.full(size, UNLIKELY, dtype=np.float32)
            values[first], values[second] = 0.0, noise[first] - noise[second] + np.float32(more)
            logits.append(values)
            rows.append(row(seed=seed))
    check_rows(load, torch.from_numpy(np.stack(logits)), rows)


def edges_of_top_p(load: LoadKernels) -> None:
    """The token that wins is the last one that top_p takes, or the first that it leaves, by 1e-8 of all mass. In every
    second row most tokens hold little of it."""
    logits, rows = [], []
    for seed in range(10):
        values = random_logits(seed, 500, 2.0)
        if seed % 2:
            values[32:] -= 16
        for share in masses_before_winner(values, row(seed=seed)):
            logits.append(values)
            rows.append(row(seed=seed, top_p=share))
    assert len(rows) > 20
    check_rows(load, torch.from_numpy(np.stack(logits)), rows)


def masses_before_winner(values: NDArray[np.float32], one: SampledRow) -> Iterator[float]:
    """What the tokens likelier than the row's hold of all mass, a little less and a little more; nothing if none is."""
    winner = reference.sample(values, one, 0)
    order = np.argsort(-values, kind="stable")
    held = np.cumsum(np.exp((values[order] - values.max()).astype(np.float64)))
    rank = int(np.flatnonzero(order == winner)[0])
    for less in (1e-8, -1e-8, 1e-9, -1e-9):
        if rank > 0:
            yield float(held[rank - 1] / held[-1]) * (1 - less)


def edges_of_top_k(load: LoadKernels) -> None:
    """The last token that top_k takes wins, at distances and temperatures whose quotients are rounded up and down."""
    size, last, logits, rows = 24, 13, [], []
    for index in range(60):
        values = np.full(size, UNLIKELY, dtype=np.float32)
        values[3], values[last] = 1.0, np.float32(1 - 0.013 * (index + 1))
        seed = next(seed for seed in range(index, 10_000) if noise_of(seed, last) > noise_of(seed, 3) + 2)
        logits.append(values)
        rows.append(row(seed=seed, temperature=0.7 + 0.11 * index, top_k=2))
    assert set(check_rows(load, torch.from_numpy(np.stack(logits)), rows).tokens.tolist()) == {last}


def noise_of(seed: int, token: int) -> float:
    return float(philox.gumbel(seed, 0, np.array([token], dtype=np.int64))[0])


def filters_together(load: LoadKernels) -> None:
    """Each filter where another one takes fewer; top_k of a masked and biased row, with more and fewer tokens left."""
    size = 203
    few, many = mask_of(range(2, size, 50), size), mask_of(range(0, size, 2), size)
    kinds: list[dict[str, object]] = [
        {"min_p": 0.6, "top_k": 150},
        {"min_p": 0.01, "top_k": 2},
        {"min_p": 0.5, "top_p": 0.99},
        {"min_p": float(np.exp(-1.0))},  # the logit of a token below is just so far from the largest one
        {"grammar_mask": few, "top_k": 50},
        {"grammar_mask": few, "top_k": 4, "temperature": 3.0},
        {"grammar_mask": many, "top_k": 3},
        {"logit_bias": {5: 4.0, 6: 4.0, 7: 4.5}, "top_k": 3},
        {"logit_bias": {5: 4.0, 6: 4.0, 7: 4.5}, "top_p": 0.5, "min_p": 0.1},
        {"grammar_mask": mask_of(range(32), size), "logit_bias": {5: 1.0}, "top_p": 0.5},
        {"history": [9, 9, 9], "frequency_penalty": -1.5, "top_k": 1},
        {"top_k": size - 1, "temperature": 5.0},
    ]
    rows = [row(seed=seed, **kind) for kind in kinds for seed in range(8)]
    logits = random_rows(len(rows), size, 0.3, FP32)
    check_rows(load, logits, rows)
    check_rows(load, logits.to(BF16), rows)
    check_rows(load, torch.tensor([[0.0, 0.1, -0.1, 0.2]] * 24), [row(seed=seed, top_k=3) for seed in range(24)])
    edge = torch.full((16, 40), UNLIKELY)
    edge[:, 3], edge[:, 30] = 0.0, float(np.log(np.float32(np.exp(-1.0))))
    check_rows(load, edge, [row(seed=seed, min_p=float(np.exp(-1.0))) for seed in range(16)])


CHECKS: list[Check] = [
    seeds_and_positions,
    temperatures,
    rarest_noise,
    near_keys,
    edges_of_top_p,
    edges_of_top_k,
    filters_together,
]
