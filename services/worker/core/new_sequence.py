"""What can be wrong with a NewSequence, checked again before anything reaches the device."""

import numpy as np
from numpy.typing import NDArray

from shared.messages.pipeline import NewSequence
from shared.messages.sampling import Sampling

MAX_ENDERS = 8


def enders_of(sampling: Sampling) -> list[int]:
    """Ids that end a sequence: EOS and stop tokens."""
    return sorted({*sampling.eos_token_ids, *sampling.stop_token_ids})


def problem_of(
    new: NewSequence,
    blocks: NDArray[np.int32] | None,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    vocab_size: int,
) -> str | None:
    """Why this sequence cannot be held, None if it can. blocks: its block_ids, None if they are no int32 column."""
    counts = _problem_of_counts(new, max_model_len)
    if counts is not None:
        return counts
    if blocks is None or len(blocks) > -(-max_model_len // block_size):
        return "block_ids is no block table of this worker"
    if len(blocks) and not (0 <= int(blocks.min()) and int(blocks.max()) < num_blocks):
        return f"a block id is not below {num_blocks}"
    if new.num_cached_tokens % block_size or new.num_cached_tokens > len(blocks) * block_size:
        return f"{new.num_cached_tokens} cached tokens are no whole blocks of the {len(blocks)} given"
    return _problem_of_ids(new, vocab_size)


def _problem_of_counts(new: NewSequence, max_model_len: int) -> str | None:
    num_outputs = new.num_tokens - new.num_prompt_tokens
    if not 1 <= new.num_prompt_tokens <= new.num_tokens <= max_model_len:
        return f"{new.num_prompt_tokens} prompt tokens of {new.num_tokens} do not fit max_model_len {max_model_len}"
    if num_outputs >= new.sampling.max_tokens:
        return f"{num_outputs} output tokens reach max_tokens {new.sampling.max_tokens} already"
    if not 0 <= new.num_cached_tokens < new.num_tokens:
        return f"{new.num_cached_tokens} cached tokens leave none of {new.num_tokens} to compute"
    return None


def _problem_of_ids(new: NewSequence, vocab_size: int) -> str | None:
    sampling = new.sampling
    for name, ids in (
        ("eos_token_ids", sampling.eos_token_ids),
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("bad_token_ids", sampling.bad_token_ids),
        ("logit_bias", sampling.logit_bias),
    ):
        if any(not 0 <= token_id < vocab_size for token_id in ids):
            return f"{name} holds an id that is not below vocab_size {vocab_size}"
    if not sampling.has_penalties:
        return None
    if len(new.history) != 4 * new.num_tokens:
        return f"history of {len(new.history)} bytes is not that of {new.num_tokens} tokens"
    history = np.frombuffer(new.history, dtype=np.int32)
    if not (0 <= int(history.min()) and int(history.max()) < vocab_size):
        return f"history holds an id that is not below vocab_size {vocab_size}"
    return None
