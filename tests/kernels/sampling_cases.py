"""Logits and parameters over a whole vocabulary, by which samplers are compared."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.sampling import philox, reference
from kernels.sampling.rows import Sampled, is_greedy
from tests.kernels.sampling_rows import SampledRow, mask_of, random_logits

VOCABULARY = 49_152


def rounded(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """As bfloat16 products round them: with many equals."""
    return torch.from_numpy(logits).bfloat16().float().numpy()


def peaked(seed: int) -> NDArray[np.float32]:
    """A few likely tokens above a heap of unlikely ones, as a language model has them."""
    generator = np.random.default_rng(seed)
    heap = 2.5 * generator.standard_normal(VOCABULARY)
    heap[generator.integers(0, VOCABULARY, 30)] = 11 + 4 * generator.standard_normal(30)
    return heap.astype(np.float32)


LOGITS = {
    "wide": lambda seed: random_logits(seed, VOCABULARY),
    "narrow": lambda seed: random_logits(seed, VOCABULARY, spread=0.1),
    "peaked": peaked,
    "rounded": lambda seed: rounded(random_logits(seed, VOCABULARY)),
    "equal": lambda seed: np.zeros(VOCABULARY, dtype=np.float32),
}
PARAMETERS = [
    {},
    {"temperature": 0.6},
    {"top_p": 0.9},
    {"top_p": 0.4, "temperature": 1.3},
    {"top_p": 1e-6},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 20, "top_p": 0.95, "temperature": 0.6},
    {"top_k": 9000, "top_p": 0.8},
    {"top_k": VOCABULARY - 1},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"min_p": 0.01, "top_k": 300, "top_p": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.3, "history": [5, 7, 7, 100, 7], "num_prompt_tokens": 2},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "history": [5, 7, 7, 100, 7], "num_prompt_tokens": 2},
    {"allowed_token_ids": tuple(range(3, 40_000, 7)), "bad_token_ids": (10, 17), "top_p": 0.5},
]
MASKED = {"grammar_mask": mask_of(range(0, VOCABULARY, 5), VOCABULARY), "top_k": 40, "top_p": 0.9}


def assert_same_tokens(
    result: Sampled, expected: Sampled, logits: NDArray[np.float32], rows: Sequence[SampledRow]
) -> None:
    """But for drawn ones of nearly equal keys. logits: float32 [rows, vocabulary]. No row may have failed."""
    assert result.errors == expected.errors == {}
    for index in np.flatnonzero(result.tokens != expected.tokens).tolist():
        tokens = int(result.tokens[index]), int(expected.tokens[index])
        assert not is_greedy(rows[index].sampling), tokens
        assert gap_of_best_keys(logits[index], rows[index], tokens) < 1e-5


def gap_of_best_keys(logits: NDArray[np.float32], one: SampledRow, tokens: tuple[int, int]) -> float:
    """How far apart the keys of two tokens are: below 1e-5 two samplers may differ."""
    changed = reference.modified(logits, one, one.position)
    scaled = (changed - changed.max()) / np.float32(one.sampling.temperature)
    noise = philox.gumbel(one.sampling.seed, one.position, np.sort(np.array(tokens, dtype=np.int64)))
    keys = scaled[np.sort(tokens)] + noise
    return float(abs(keys[0] - keys[1]))
