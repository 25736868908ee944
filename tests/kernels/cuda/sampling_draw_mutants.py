"""Bugs planted in sampling: in noise, and in filters of what may be drawn."""

from dataclasses import replace

from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.sampling_checks import drawn_rows, flat_rows
from tests.kernels.cuda.sampling_edges import (
    edges_of_top_k,
    edges_of_top_p,
    filters_together,
    near_keys,
    rarest_noise,
    seeds_and_positions,
    temperatures,
)

FOLDER = "kernels/sampling/"
DRAW, PHILOX, SELECT = (FOLDER + name for name in ("draw.cuh", "philox.cuh", "select.cuh"))

# Random numbers and what they stand for.
_NOISE = {
    "sampling: nine rounds": Mutant(PHILOX, "round < 10", "round < 9", (seeds_and_positions,)),
    "sampling: every output position is the first": Mutant(PHILOX, "c1 = position", "c1 = 0", (seeds_and_positions,)),
    "sampling: half a seed": Mutant(PHILOX, "key_1 = seed_high", "key_1 = 0", (seeds_and_positions,)),
    "sampling: a seed's halves are exchanged": Mutant(
        PHILOX, "key_0 = seed_low, key_1 = seed_high", "key_0 = seed_high, key_1 = seed_low", (seeds_and_positions,)
    ),
    "sampling: the position in the third word of the counter": Mutant(
        PHILOX, "c1 = position, c2 = 0", "c1 = 0, c2 = position", (seeds_and_positions,)
    ),
    "sampling: keys that stay": Mutant(PHILOX, "      key_1 += 0xBB67AE85u;\n", "", (seeds_and_positions,)),
    "sampling: the likeliest token's neighbour's word": Mutant(
        PHILOX, "token & 2 ? high : low", "token & 2 ? low : high", (near_keys,)
    ),
    "sampling: the least number is 0": Mutant(
        PHILOX, "static_cast<float>(word) + 0.5f", "static_cast<float>(word)", (rarest_noise,)
    ),
    "sampling: the greatest number is 1": Mutant(
        PHILOX,
        "fminf((static_cast<float>(word) + 0.5f) * 0x1p-32f, 1 - 0x1p-24f)",
        "(static_cast<float>(word) + 0.5f) * 0x1p-32f",
        (rarest_noise,),
    ),
    "sampling: 24 bits of a word": Mutant(
        PHILOX,
        "static_cast<float>(word) + 0.5f) * 0x1p-32f",
        "static_cast<float>(word >> 8) + 0.5f) * 0x1p-24f",
        (rarest_noise,),
    ),
    "sampling: small numbers lose their digits": Mutant(
        PHILOX, "-log1pf(-uniform(word))", "-logf(1 - uniform(word))", (rarest_noise,)
    ),
    "sampling: noise of up to 22 alone": Mutant(PHILOX, "kMaxGumbel = 22.9f", "kMaxGumbel = 22.0f", (rarest_noise,)),
    "sampling: noise above its bound": Mutant(PHILOX, "1e-3f - __logf", "-1e-3f - __logf", (near_keys,)),
}

# Which token wins.
_DRAW = {
    "sampling: times the temperature": Mutant(
        DRAW,
        "{ return (value - largest) / temperature; }",
        "{ return (value - largest) * temperature; }",
        (temperatures,),
    ),
    "sampling: top_k's last logit times the temperature": Mutant(
        DRAW, "return -distance / temperature", "return -distance * temperature", (temperatures,)
    ),
    "sampling: filters' limits without the temperature": Mutant(
        DRAW, "least * temperature * (1 + 1e-6f)", "least * (1 + 1e-6f)", (temperatures,)
    ),
    "sampling: no doubt about what rounding does to a limit": Mutant(
        DRAW, "least * temperature * (1 + 1e-6f)", "least * temperature", (edges_of_top_k,)
    ),
    "sampling: a chunk's last token does not count": Mutant(
        DRAW, "k = 1; k < kChunk; k++) largest", "k = 1; k < kChunk - 1; k++) largest", (drawn_rows,)
    ),
    "sampling: what may not be drawn is": Mutant(
        DRAW, "  drawing.row.modify(first, values);\n", "", (filters_together,)
    ),
    "sampling: what filters take away is drawn": Mutant(
        DRAW, "    if (!end.is_after(values[k], first + k)) values[k] = -infinity();\n", "", (temperatures,)
    ),
    "sampling: the likeliest token has another's noise": Mutant(
        DRAW, "philox.word(drawing.likeliest.token)", "philox.word(0)", (drawn_rows,)
    ),
    "sampling: a chunk's second half has the first one's noise": Mutant(
        DRAW, "words((first + begin) / 4, words)", "words(first / 4, words)", (drawn_rows,)
    ),
    "sampling: a chunk ends where its first half is unlikely": Mutant(
        DRAW, "best.value - kMaxGumbel)) continue;", "best.value - kMaxGumbel)) break;", (drawn_rows,)
    ),
    "sampling: a chunk ends below the likeliest token's key": Mutant(
        DRAW, "best.value - kMaxGumbel)) return;", "best.value)) return;", (drawn_rows,)
    ),
    "sampling: a half's last token is left out": Mutant(
        DRAW, "fmaxf(values[begin + 2], values[begin + 3]));", "values[begin + 2]);", (rarest_noise,)
    ),
    "sampling: no noise in a key": Mutant(DRAW, "__fadd_rn(value, gumbel(words[k]))", "value", (drawn_rows,)),
    "sampling: masses end too early": Mutant(DRAW, "end, -80.0f", "end, -16.0f", (edges_of_top_p,)),
    "sampling: equals of a token are before it": Mutant(
        DRAW, "if (place.is_after(values[k], first + k)) before", "if (values[k] >= place.value) before", (flat_rows,)
    ),
    "sampling: equals of a token are after it": Mutant(
        DRAW, "if (place.is_after(values[k], first + k)) before", "if (values[k] > place.value) before", (flat_rows,)
    ),
    "sampling: single precision alone": Mutant(
        DRAW,
        "mass = masses<double>(drawing, end, token);",
        "mass = masses<float>(drawing, end, token);",
        (edges_of_top_p,),
    ),
    "sampling: single precision of each mass": Mutant(
        DRAW, "{ return exp(static_cast<double>(value)); }", "{ return expf(value); }", (edges_of_top_p,)
    ),
    "sampling: no doubt about sums in single precision": Mutant(
        DRAW, "kDoubt = 1e-5", "kDoubt = 1e-9", (edges_of_top_p,)
    ),
    "sampling: a nucleus that holds top_p takes one more": Mutant(
        DRAW, "return mass.before < top_p", "return mass.before <= top_p", (drawn_rows,)
    ),
    "sampling: min_p is forgotten where there is a top_k": Mutant(
        DRAW, "least = fmaxf(least, scale.of_distance", "least = (scale.of_distance", (filters_together,)
    ),
    "sampling: min_p is left out": Mutant(DRAW, "fmaxf(parameters.least, kLowest)", "kLowest", (temperatures,)),
    "sampling: top_k takes one more": Mutant(
        DRAW, "cut_after(row, parameters.top_k, false", "cut_after(row, parameters.top_k + 1, false", (drawn_rows,)
    ),
    "sampling: top_k of all but one takes all": Mutant(
        DRAW, "parameters.top_k < row.size", "parameters.top_k < row.size - 1", (filters_together,)
    ),
    "sampling: top_k counts what may not be drawn": Mutant(
        DRAW, "cut_after(row, parameters.top_k", "cut_after(row.raw(), parameters.top_k", (filters_together,)
    ),
    "sampling: the last token's equals are left out": Mutant(
        DRAW, "end{least, kNoToken}", "end{least, 0}", (flat_rows,)
    ),
    "sampling: top_p of what the other filters take away": Mutant(
        DRAW,
        "in_nucleus(drawing, end, place, parameters.top_p)",
        "in_nucleus(drawing, Place{kLowest, kNoToken}, place, parameters.top_p)",
        (filters_together,),
    ),
    "sampling: top_p of a nucleus that shrinks": Mutant(
        DRAW,
        "in_nucleus(drawing, end, place, parameters.top_p)",
        "in_nucleus(drawing, place, place, parameters.top_p)",
        (drawn_rows,),
    ),
    "sampling: the likeliest token where the first one is none of the nucleus": Mutant(
        DRAW,
        "if (in_nucleus(drawing, end, place, parameters.top_p)) return token;",
        "return in_nucleus(drawing, end, place, parameters.top_p) ? token : likeliest.token;",
        (drawn_rows,),
    ),
}

# The token of a rank.
_SELECT = {
    "sampling: sums of lanes beyond the warp's first": Mutant(
        SELECT, "if (lane >= distance) up_to", "up_to", (drawn_rows,)
    ),
    "sampling: the own warp's bins twice": Mutant(
        SELECT, "other < warp; other++", "other <= warp; other++", (drawn_rows,)
    ),
    "sampling: the bin before a rank's": Mutant(
        SELECT, "rank <= before + counts[i])", "rank < before + counts[i])", (drawn_rows,)
    ),
    "sampling: a bin of the last search": Mutant(
        SELECT, "  if (threadIdx.x == 0) memory.found = {0, 0, 0};\n", "", (filters_together,)
    ),
    "sampling: read before all bins are looked at": Mutant(
        SELECT, "  __syncthreads();\n  const Bin found", "  const Bin found", (drawn_rows,)
    ),
    "sampling: other warps' bins are read before they are there": Mutant(
        SELECT, "memory.found = {0, 0, 0};\n  __syncthreads();\n", "memory.found = {0, 0, 0};\n", (drawn_rows,)
    ),
    "sampling: bins of the last search": Mutant(SELECT, "memory.bins[bin] = 0;", "continue;", (drawn_rows,)),
    "sampling: counted while others clear bins": Mutant(
        SELECT, "memory.bins[bin] = 0;\n  __syncthreads();\n", "memory.bins[bin] = 0;\n", (drawn_rows,)
    ),
    "sampling: searched while others count": Mutant(
        SELECT, "  });\n  __syncthreads();\n  return find_bin", "  });\n  return find_bin", (drawn_rows,)
    ),
    "sampling: counts what may not be sampled": Mutant(
        SELECT, "    row.modify(first, values);\n", "", (filters_together,)
    ),
    "sampling: two digits of a key": Mutant(
        SELECT, "shift = 20; shift >= 0; shift -= 10", "shift = 20; shift > 0; shift -= 10", (drawn_rows,)
    ),
    "sampling: counts keys of other digits": Mutant(
        SELECT, "(other ^ key) >> end != 0 ? kNoKey", "other == kNoKey ? kNoKey", (drawn_rows,)
    ),
    "sampling: the rank among all for that among some": Mutant(
        SELECT,
        "    key |= bin.index << shift;\n    rank -= bin.before;\n",
        "    key |= bin.index << shift;\n",
        (drawn_rows,),
    ),
    "sampling: fewer tokens than top_k": Mutant(
        SELECT, "    if (bin.count == 0) return {kLastKey, kNoToken};\n", "", (filters_together,)
    ),
    "sampling: all of the last one's equals": Mutant(
        SELECT, "rank == bin.count) return", "rank <= bin.count) return", (flat_rows,)
    ),
    "sampling: one digit of a token": Mutant(
        SELECT,
        "shift = kDigitBits; shift >= 0; shift -= kDigitBits",
        "shift = 0; shift >= 0; shift -= kDigitBits",
        (flat_rows,),
    ),
    "sampling: a token's last digit alone": Mutant(
        SELECT, "token |= bin.index << shift", "token = bin.index << shift", (flat_rows,)
    ),
    "sampling: the rank among all equals for that among some": Mutant(
        SELECT,
        "    token |= bin.index << shift;\n    rank -= bin.before;\n",
        "    token |= bin.index << shift;\n",
        (flat_rows,),
    ),
    "sampling: equals of tokens with other keys": Mutant(
        SELECT, "key_of(value) == key && (other", "(other", (flat_rows,)
    ),
}

# One of each kind.
_EVERY_RUN = {
    "sampling: every output position is the first",
    "sampling: the least number is 0",
    "sampling: single precision alone",
}
_ALL = {**_NOISE, **_DRAW, **_SELECT}

MUTANTS = {name: replace(mutant, is_long_run=name not in _EVERY_RUN) for name, mutant in _ALL.items()}
