"""Rows for sampling tests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

VOCABULARY = 257


@dataclass(frozen=True)
class Params:
    """Parameters that change nothing unless said."""

    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    bad_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SampledRow:
    """A row as the engine makes one, and its output position, which samplers take beside it."""

    sampling: Params
    position: int = 0
    num_prompt_tokens: int = 0
    history: NDArray[np.int32] | None = None
    grammar_mask: NDArray[np.uint32] | None = None


def row(
    position: int = 0,
    history: list[int] | None = None,
    num_prompt_tokens: int = 0,
    grammar_mask: NDArray[np.uint32] | None = None,
    **params: Any,
) -> SampledRow:
    """A row with these parameters."""
    ids = None if history is None else np.array(history, dtype=np.int32)
    return SampledRow(Params(**params), position, num_prompt_tokens, ids, grammar_mask)


def mask_of(allowed: Iterable[int], vocab_size: int) -> NDArray[np.uint32]:
    """A grammar mask that allows these tokens; what lies beyond the vocabulary in its last word is allowed too."""
    words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token in {*allowed, *range(vocab_size, 32 * len(words))}:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def positions_of(rows: Sequence[SampledRow]) -> NDArray[np.int32]:
    """The rows' output positions: int32 [rows]."""
    return np.array([one.position for one in rows], dtype=np.int32)


def random_logits(seed: int, size: int, spread: float = 3.0) -> NDArray[np.float32]:
    """Normally distributed logits: float32 [size]."""
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


@st.composite
def rows(draw: st.DrawFn, vocabulary: int = VOCABULARY) -> SampledRow:
    """Rows of whatever parameters, for logits of this many tokens, 40 at least."""
    token = st.integers(0, vocabulary - 1)
    ids = st.lists(token, max_size=5).map(tuple)
    params = Params(
        min_tokens=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 1e-40, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 50, 10_000])),
        top_p=draw(st.sampled_from([1e-6, 0.3, 0.9, 0.999999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.01, 0.5, 1.0])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        stop_token_ids=draw(ids),
        eos_token_ids=draw(ids),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -2.0, 1.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.7])),
        logit_bias=draw(st.dictionaries(token, st.floats(-100, 100, width=32), max_size=4)),
        bad_token_ids=draw(ids),
        allowed_token_ids=draw(
            st.one_of(st.just(()), st.lists(token, min_size=30, max_size=40, unique=True).map(tuple))
        ),
    )
    history = draw(st.lists(token, max_size=20))
    prompt = draw(st.integers(0, len(history)))
    forbidden = draw(st.one_of(st.none(), st.sets(token, max_size=20)))
    mask = None if forbidden is None else mask_of(set(range(vocabulary)) - forbidden, vocabulary)
    return SampledRow(params, draw(st.integers(0, 5)), prompt, np.array(history, dtype=np.int32), mask)
