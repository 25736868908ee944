"""What a row of logits is sampled by, and what comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.sampling import GREEDY_BELOW

NOT_FINITE = "the model's logits are not finite numbers"
NOTHING_LEFT = "the request's parameters leave no token to sample"


class Parameters(Protocol):
    """Resolved sampling parameters of a request, named as OpenAI and vLLM name them.

    top_k: 0 or less means all tokens. logprobs: number of alternatives beside the chosen token, None for none at all.
    """

    @property
    def min_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def stop_token_ids(self) -> Sequence[int]: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def bad_token_ids(self) -> Sequence[int]: ...
    @property
    def allowed_token_ids(self) -> Sequence[int]: ...


class Row(Protocol):
    """How one row is sampled, step after step. Where it is in its output goes beside it, as a column of all rows:
    positions, int32 [rows], the output position of the token to be sampled (0 for the first).

    history: int32 ids of prompt and outputs so far, the first num_prompt_tokens of them the prompt; may be None when
    no penalty is set. grammar_mask: uint32 [ceil(vocabulary / 32)], bit i % 32 of word i // 32 allows token i in this
    step; None for a row without a grammar, as long as it lives.
    """

    @property
    def sampling(self) -> Parameters: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def history(self) -> NDArray[np.int32] | None: ...
    @property
    def grammar_mask(self) -> NDArray[np.uint32] | None: ...


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probability of a sampled token, its rank (1 + the number of likelier tokens), and the likeliest tokens
    in falling order, equals by rising id."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(slots=True)
class Sampled:
    """tokens: int32 [rows], undefined where errors has the row. logprobs: one entry a row, None where not asked for."""

    tokens: NDArray[np.int32]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, str] = field(default_factory=dict)


def is_greedy(parameters: Parameters) -> bool:
    """Whether the likeliest token is taken instead of drawing one."""
    return parameters.temperature < GREEDY_BELOW


def has_penalties(parameters: Parameters) -> bool:
    """Whether the row's history changes its logits."""
    return (
        parameters.repetition_penalty != 1.0
        or parameters.frequency_penalty != 0.0
        or parameters.presence_penalty != 0.0
    )


def num_mask_words(vocab_size: int) -> int:
    """Of a grammar mask."""
    return -(-vocab_size // 32)


def check_mask(mask: NDArray[np.uint32], vocab_size: int) -> None:
    """Raises ValueError for a grammar mask of another type or length."""
    if mask.dtype != np.uint32 or mask.shape != (num_mask_words(vocab_size),) or not mask.flags.c_contiguous:
        wanted = f"uint32 [{num_mask_words(vocab_size)}], without gaps"
        raise ValueError(f"a grammar mask of {vocab_size} tokens is {wanted}, not {mask.dtype} {list(mask.shape)}")


def blocked_ids(row: Row, position: int) -> list[int]:
    """Ids that may not be sampled at this output position: the bad ones, before min_tokens also EOS and stop ids."""
    parameters = row.sampling
    blocked = list(parameters.bad_token_ids)
    if position < parameters.min_tokens:
        blocked.extend(parameters.eos_token_ids)
        blocked.extend(parameters.stop_token_ids)
    return blocked


def out_of_range(token: int, vocab_size: int) -> str:
    """Why a row fails that names this id."""
    return f"token id {token} is not in the vocabulary of {vocab_size}"


def id_out_of_range(row: Row, position: int, vocab_size: int) -> int | None:
    """A token id in the row's parameters or history that is no column of its logits, if there is one."""
    parameters = row.sampling
    for ids in (parameters.logit_bias, parameters.allowed_token_ids, blocked_ids(row, position)):
        for token in ids:
            if not 0 <= token < vocab_size:
                return token
    if row.history is not None and has_penalties(parameters):
        outside = row.history[(row.history < 0) | (row.history >= vocab_size)]
        if len(outside):
            return int(outside[0])
    return None
