"""Sampling on the CPU, in torch and NumPy.

Greedy rows without any parameter of their own share one argmax over the batch. Every other row is worked on alone, so
that nothing of a row can touch its neighbour: about 0.5 ms for a drawn one with a vocabulary of 49,152.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling.philox import gumbel
from kernels.sampling.rows import (
    NOT_FINITE,
    NOTHING_LEFT,
    Row,
    Sampled,
    TokenLogprobs,
    blocked_ids,
    check_mask,
    has_penalties,
    id_out_of_range,
    is_greedy,
    out_of_range,
)

# Tokens this many nats below the likeliest are left out of the first try at top-p: their whole mass is tiny.
_TOP_P_NATS = 12.0


def sample(logits: Tensor, rows: Sequence[Row], positions: NDArray[np.int32]) -> Sampled:
    """logits: float32 [number of rows, vocabulary], overwritten. rows: one for each row of logits; positions: int32
    [number of rows], their output positions.

    A row fails alone, with a reason in errors: its logits are not numbers, an id is not in the vocabulary, or no token
    is left to sample.
    """
    vocab_size = logits.shape[1]
    greedy_tokens = logits.argmax(dim=-1)
    # one NaN or infinity makes the sum one, and a sum costs a tenth of a look at each number; large numbers may, too
    finite = torch.isfinite(logits.sum(dim=-1)).tolist()
    result = Sampled(tokens=greedy_tokens.numpy().astype(np.int32), logprobs=[None] * len(rows))
    for index, (row, position) in enumerate(zip(rows, positions.tolist(), strict=True)):
        if not (finite[index] or torch.isfinite(logits[index]).all()):
            result.errors[index] = NOT_FINITE
            continue
        stranger = id_out_of_range(row, position, vocab_size)
        if stranger is not None:
            result.errors[index] = out_of_range(stranger, vocab_size)
            continue
        num_top = row.sampling.logprobs
        raw = None if num_top is None else log_softmax(logits[index])
        changed = _modify(logits[index], row, position)
        if changed or not is_greedy(row.sampling):
            token = _choose(logits[index], row, position)
            if token is None:
                result.errors[index] = NOTHING_LEFT
                continue
            result.tokens[index] = token
        if raw is not None and num_top is not None:
            result.logprobs[index] = token_logprobs(raw, int(result.tokens[index]), num_top)
    return result


def log_softmax(logits: Tensor) -> Tensor:
    """float32 [vocabulary] to float32 [vocabulary], finite also where a distance between logits is not."""
    return logits.log_softmax(dim=-1).clamp_(min=torch.finfo(torch.float32).min)


def _modify(logits: Tensor, row: Row, position: int) -> bool:
    """Applies masks, bias and penalties to float32 [vocabulary] in place; False if there were none."""
    parameters = row.sampling
    changed = False
    if parameters.allowed_token_ids:
        allowed = torch.tensor(parameters.allowed_token_ids)
        values = logits[allowed]
        logits.fill_(float("-inf"))[allowed] = values
        changed = True
    if row.grammar_mask is not None:
        check_mask(row.grammar_mask, len(logits))
        bits = np.unpackbits(row.grammar_mask.view(np.uint8), count=len(logits), bitorder="little")
        logits[torch.from_numpy(bits == 0)] = float("-inf")
        changed = True
    blocked = blocked_ids(row, position)
    if blocked:
        logits[torch.tensor(blocked)] = float("-inf")
        changed = True
    if parameters.logit_bias:
        biased = torch.tensor(list(parameters.logit_bias))
        logits[biased] += torch.tensor(list(parameters.logit_bias.values()), dtype=torch.float32)
        changed = True
    if row.history is not None and has_penalties(parameters):
        _penalize(logits, row, row.history)
        changed = True
    return changed


def _penalize(logits: Tensor, row: Row, history: NDArray[np.int32]) -> None:
    parameters = row.sampling
    if parameters.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(history).astype(np.int64))
        values = logits[seen]
        penalty = parameters.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    output, counts = np.unique(history[row.num_prompt_tokens :], return_counts=True)
    subtracted = parameters.frequency_penalty * counts + parameters.presence_penalty
    logits[torch.from_numpy(output.astype(np.int64))] -= torch.from_numpy(subtracted.astype(np.float32))


def _choose(logits: Tensor, row: Row, position: int) -> int | None:
    """The token for modified logits, float32 [vocabulary]; None if all are -inf."""
    likeliest, token = logits.max(dim=-1)
    if not torch.isfinite(likeliest):
        return None
    if is_greedy(row.sampling):
        return int(token)
    tokens, scaled = _filter((logits - likeliest) / row.sampling.temperature, row)
    noise = gumbel(row.sampling.seed, position, tokens)
    return int(tokens[np.argmax(scaled + noise)])


def _filter(scaled: Tensor, row: Row) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Tokens that min_p, top_k and top_p leave, by rising id, and their logits / temperature (the largest is 0)."""
    parameters = row.sampling
    least = float("-inf")
    if parameters.min_p > 0:
        least = float(np.log(np.float32(parameters.min_p)))
    if 0 < parameters.top_k < len(scaled):
        least = max(least, float(scaled.topk(parameters.top_k).values[-1]))
    if least == float("-inf"):
        kept = (scaled > least).nonzero().squeeze(1)
    else:
        kept = (scaled >= least).nonzero().squeeze(1)
    if parameters.top_p < 1:
        kept = _top_p(scaled, kept, parameters.top_p)
    return kept.numpy(), scaled[kept].numpy()


def _top_p(scaled: Tensor, kept: Tensor, top_p: float) -> Tensor:
    """Of the tokens kept, by rising id, the fewest likeliest that hold top_p of their mass, by rising id."""
    values = scaled[kept]
    total = float(values.double().exp().sum())
    for least in (-_TOP_P_NATS, float("-inf")):
        likely = (values >= least).nonzero().squeeze(1)
        ordered, order = values[likely].sort(descending=True, stable=True)
        held = ordered.double().exp().cumsum(dim=0) / total
        if float(held[-1]) >= top_p or least == float("-inf"):
            break
    num_kept = 1 + int((held[:-1] < top_p).sum())
    return kept[likely[order[:num_kept]]].sort().values


def token_logprobs(raw: Tensor, token: int, num_top: int) -> TokenLogprobs:
    """The report on a sampled token from raw log-probabilities, float32 [vocabulary]."""
    chosen = raw[token]
    top: list[int] = []
    if num_top > 0:
        least = raw.topk(min(num_top, len(raw))).values[-1]
        candidates = (raw >= least).nonzero().squeeze(1)
        order = raw[candidates].sort(descending=True, stable=True).indices
        top = candidates[order[:num_top]].tolist()
    return TokenLogprobs(
        logprob=float(chosen),
        rank=1 + int((raw > chosen).sum()),
        top_ids=tuple(top),
        top_logprobs=tuple(raw[top].tolist()) if top else (),
    )
