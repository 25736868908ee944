"""Cases for `python -m kernels check`: greedy rows, drawn ones, penalties, log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.check.case import Case, Size, Trial, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.sampling import cpu, philox, reference
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits
from kernels.sampling.rows import Sampled

_HISTORY_TOKENS = 500
_NEARLY_EQUAL = 1e-5  # keys so close may be ordered either way
_LOGPROB_ERROR = 1e-4
_SPREAD = 3.0  # of logits, as a language model has them


@dataclass(frozen=True, slots=True)
class _Parameters:
    """See rows.Parameters; they change nothing unless said."""

    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    eos_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    sampling: _Parameters
    num_prompt_tokens: int = 0
    history: NDArray[np.int32] | None = None
    grammar_mask: NDArray[np.uint32] | None = None


_KINDS = {
    "greedy": partial(_Parameters, temperature=0.0),
    "temperature 0.7": partial(_Parameters, temperature=0.7),
    "top-k 50, top-p 0.9": partial(_Parameters, temperature=0.8, top_k=50, top_p=0.9),
    "min-p 0.05, 5 log-probabilities": partial(_Parameters, min_p=0.05, logprobs=5),
    "penalties": partial(_Parameters, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, top_p=0.95),
}


def cases(size: Size) -> list[Case]:
    """Rows of one kind each; logits as the engine has them, and in a model's dtype."""
    num_rows, vocab_size = (3, 1003) if size is Size.SMALL else (64, 128256)
    return [
        Case(
            "sampling",
            f"{num_rows} of {vocab_size} {short_name(dtype)}, {kind}",
            partial(_prepare, kind, dtype, num_rows, vocab_size),
        )
        for dtype in (torch.float32, torch.bfloat16)
        for kind in _KINDS
    ]


def _prepare(
    kind: str, dtype: torch.dtype, num_rows: int, vocab_size: int, load: LoadKernels, device: torch.device
) -> Trial:
    logits = (random_tensor(1, (num_rows, vocab_size), torch.float32, device) * _SPREAD).to(dtype)
    history = np.random.default_rng(2).integers(0, vocab_size, (num_rows, _HISTORY_TOKENS)).astype(np.int32)
    rows = [_Row(_KINDS[kind](seed=977 * row + 5), _HISTORY_TOKENS // 2, history[row]) for row in range(num_rows)]
    positions = np.arange(num_rows, dtype=np.int32)
    limits = Limits(vocab_size, num_rows, max_history_tokens=history.size, max_biases=num_rows)
    sampling = Sampling(load, dtype, limits, device)
    sampling.stage(rows, positions)
    raw = to_numpy(logits)
    expected = cpu.sample(torch.from_numpy(raw.copy()), rows, positions)  # which is tested against the reference
    return Trial(
        launch=lambda: sampling.launch(logits),
        compare=lambda: _error(sampling.collect(), expected, raw, rows, positions),
        num_bytes=logits.nbytes,
    )


def _error(
    found: Sampled, expected: Sampled, logits: NDArray[np.float32], rows: Sequence[_Row], positions: NDArray[np.int32]
) -> float:
    """Of log-probabilities; infinite where a row failed or drew another token, but for one of a nearly equal key."""
    if found.errors:
        return float("inf")
    worst = 0.0
    for index, (token, wanted) in enumerate(zip(found.tokens.tolist(), expected.tokens.tolist(), strict=True)):
        if token != wanted:
            if _gap(logits[index], rows[index], int(positions[index]), (token, wanted)) > _NEARLY_EQUAL:
                return float("inf")
            continue
        ours, theirs = found.logprobs[index], expected.logprobs[index]
        if (ours is None) != (theirs is None):
            return float("inf")
        if ours is not None and theirs is not None:
            pairs = zip((ours.logprob, *ours.top_logprobs), (theirs.logprob, *theirs.top_logprobs), strict=True)
            worst = max(worst, *(abs(one - other) / _LOGPROB_ERROR for one, other in pairs))
    return worst


def _gap(logits: NDArray[np.float32], row: _Row, position: int, tokens: tuple[int, int]) -> float:
    """Between the keys of two tokens, the greatest of which is drawn."""
    changed = reference.modified(logits, row, position)
    pair = np.sort(np.array(tokens, dtype=np.int64))
    temperature = row.sampling.temperature
    scaled = changed if temperature == 0 else (changed - changed.max()) / np.float32(temperature)
    noise = 0 if temperature == 0 else philox.gumbel(row.sampling.seed, position, pair)
    keys = scaled[pair] + noise
    return float(abs(keys[0] - keys[1]))
