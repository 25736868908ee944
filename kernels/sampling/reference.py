"""Sampling in float32 NumPy, a row at a time, random numbers in plain integers."""

import numpy as np
from numpy.typing import NDArray

from kernels.sampling.rows import Row, TokenLogprobs, blocked_ids, has_penalties, is_greedy

Array = NDArray[np.float32]

_WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a counter of four and a key of two 32-bit words, by ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _WORD, (first >> 32) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, token: int) -> np.float32:
    """The noise of one token at one output position of a request with this seed."""
    key = (seed & _WORD, (seed >> 32) & _WORD)
    word = philox4x32((token // 4, position, 0, 0), key)[token % 4]
    uniform = (np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
    return np.float32(-np.log(-np.log1p(-uniform)))


def log_softmax(logits: Array) -> Array:
    """float32 [vocabulary] to float32 [vocabulary], finite also where a distance between logits is not."""
    with np.errstate(over="ignore"):
        shifted = np.maximum(logits - logits.max(), np.finfo(np.float32).min)
    log_probabilities: Array = shifted - np.log(np.exp(shifted).sum())
    return log_probabilities


def masked(logits: Array, row: Row, position: int) -> Array:
    """Step 2: what must not be sampled at -inf. Returns float32 [vocabulary]."""
    parameters = row.sampling
    changed = logits.copy()
    for token in range(len(changed)):
        if parameters.allowed_token_ids and token not in parameters.allowed_token_ids:
            changed[token] = -np.inf
        if row.grammar_mask is not None and not int(row.grammar_mask[token // 32]) >> token % 32 & 1:
            changed[token] = -np.inf
    for token in blocked_ids(row, position):
        changed[token] = -np.inf
    return changed


def modified(logits: Array, row: Row, position: int) -> Array:
    """Steps 2 and 3: masked, then bias and penalties. Returns float32 [vocabulary]."""
    parameters = row.sampling
    changed = masked(logits, row, position)
    for token, bias in parameters.logit_bias.items():
        changed[token] += np.float32(bias)
    if row.history is None or not has_penalties(parameters):
        return changed
    output = row.history[row.num_prompt_tokens :].tolist()
    for token in set(row.history.tolist()):
        penalty = np.float32(parameters.repetition_penalty)
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token in set(output):
        changed[token] -= np.float32(parameters.frequency_penalty * output.count(token))
        changed[token] -= np.float32(parameters.presence_penalty)
    return changed


def filtered(scaled: Array, row: Row) -> Array:
    """min_p, top_k and top_p over logits / temperature: what falls out is -inf. Returns float32 [vocabulary]."""
    parameters = row.sampling
    kept = scaled.copy()
    if parameters.min_p > 0:
        kept[kept < kept.max() + np.log(np.float32(parameters.min_p))] = -np.inf
    if 0 < parameters.top_k < len(kept):
        kept[kept < np.sort(kept)[-parameters.top_k]] = -np.inf
    if parameters.top_p < 1:
        probabilities = np.exp((kept - kept.max()).astype(np.float64))
        probabilities /= probabilities.sum()
        held = 0.0
        for token in np.argsort(-kept, kind="stable"):
            if held >= parameters.top_p:
                kept[token] = -np.inf
            held += probabilities[token]
    return kept


def sample(logits: Array, row: Row, position: int) -> int:
    """The token of a row at an output position, from finite logits, float32 [vocabulary], at least one to choose."""
    changed = modified(logits, row, position)
    if is_greedy(row.sampling):
        return int(np.argmax(changed))
    scaled = (changed - changed.max()) / np.float32(row.sampling.temperature)
    kept = filtered(scaled, row)
    best, best_key = -1, np.float32(-np.inf)
    for token in np.flatnonzero(kept > -np.inf).tolist():
        key = kept[token] + gumbel(row.sampling.seed, position, token)
        if key > best_key:
            best, best_key = token, key
    return best


def token_logprobs(logits: Array, token: int, num_top: int) -> TokenLogprobs:
    """Step 1 for the token that was sampled from these untouched logits, float32 [vocabulary]."""
    raw = log_softmax(logits)
    top = np.argsort(-raw, kind="stable")[:num_top]
    return TokenLogprobs(
        logprob=float(raw[token]),
        rank=1 + int((raw > raw[token]).sum()),
        top_ids=tuple(int(i) for i in top),
        top_logprobs=tuple(float(raw[i]) for i in top),
    )
