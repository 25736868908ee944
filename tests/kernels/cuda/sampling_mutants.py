"""Bugs planted in sampling: in rows, their bias and penalties, and reports."""

from dataclasses import replace

from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.sampling_checks import (
    biased_and_penalized_rows,
    broken_rows,
    different_edits,
    far_rows,
    flat_rows,
    long_rows,
    mixed_rows,
    negative_rows,
    reported_rows,
    rows_apart,
)
from tests.kernels.cuda.sampling_edges import filters_together

FOLDER = "kernels/sampling/"
KERNEL, BLOCK, EDITS, ORDER, REPORT, ROW, LAYOUT = (
    FOLDER + name
    for name in ("kernel.cu", "block.cuh", "edits.cuh", "order.cuh", "report.cuh", "row.cuh", "device_row.cuh")
)
NUMBERS = "kernels/cuda/numbers.cuh"

# Where a row's numbers are.
_ROW = {
    "sampling: rows lie side by side": Mutant(
        KERNEL, "logits + index * stride", "logits + static_cast<int64_t>(index) * vocab_size", (rows_apart,)
    ),
    "sampling: 32 bits for a row's place": Mutant(
        KERNEL, "logits + index * stride", "logits + static_cast<int>(index * stride)", (far_rows,)
    ),
    "sampling: rows begin at multiples of 8 bytes": Mutant(KERNEL, "% 16 == 0", "% 8 == 0", (rows_apart,)),
    "sampling: a mask has a word too few": Mutant(
        KERNEL, "((vocab_size + 31) / 32);\n\n", "(vocab_size / 32);\n\n", (mixed_rows,)
    ),
    "sampling: the row's own number for its mask's": Mutant(
        KERNEL, "static_cast<int64_t>(parameters.mask)", "static_cast<int64_t>(index)", (mixed_rows,)
    ),
    "sampling: the first mask is left out": Mutant(
        KERNEL, "parameters.mask >= 0", "parameters.mask > 0", (mixed_rows,)
    ),
    "sampling: the first row's history for all": Mutant(
        KERNEL, "histories + parameters.first_history", "histories", (different_edits,)
    ),
    "sampling: the first row's biased tokens for all": Mutant(
        KERNEL, "biased + parameters.first_bias", "biased", (different_edits,)
    ),
    "sampling: the first row's biases for all": Mutant(
        KERNEL, "biases + parameters.first_bias}", "biases}", (different_edits,)
    ),
    "sampling: an id that is no token before logits that are no numbers": Mutant(
        KERNEL,
        "  if (!look.is_finite)\n    status = kNotFinite;\n  else if (has_stranger)\n    status = kIdOutOfRange;",
        "  if (has_stranger)\n    status = kIdOutOfRange;\n  else if (!look.is_finite)\n    status = kNotFinite;",
        (broken_rows,),
    ),
    "sampling: a row with nothing left is sampled": Mutant(
        KERNEL, "-infinity() < likeliest.value && likeliest.value", "likeliest.value", (broken_rows,)
    ),
    "sampling: an infinite bias is sampled": Mutant(KERNEL, " && likeliest.value < infinity())", ")", (broken_rows,)),
    "sampling: logits that are no numbers are sampled": Mutant(
        KERNEL, "if (!look.is_finite)", "if (false)", (broken_rows,)
    ),
    "sampling: a row that fails fails ever after": Mutant(
        KERNEL, "    statuses[index] = status;", "    if (status != kSampled) statuses[index] = status;", (broken_rows,)
    ),
    "sampling: no report without alternatives": Mutant(
        KERNEL, "parameters.num_logprobs >= 0", "parameters.num_logprobs > 0", (mixed_rows,)
    ),
    "sampling: reports lie as far apart as they are long": Mutant(
        KERNEL,
        "static_cast<int64_t>(index) * max_top",
        "static_cast<int64_t>(index) * parameters.num_logprobs",
        (mixed_rows,),
    ),
    "sampling: likeliest tokens of the modified row": Mutant(
        KERNEL, "make_report(row.raw()", "make_report(row", (reported_rows,)
    ),
    "sampling: log-probabilities relative to what may be sampled": Mutant(
        KERNEL, "look.most, token", "likeliest.value, token", (reported_rows,)
    ),
    "sampling: biases alone are left out": Mutant(
        KERNEL, "parameters.num_history + parameters.num_biases > 0", "parameters.num_history > 0", (different_edits,)
    ),
    "sampling: all rows' edits in the same cells": Mutant(
        KERNEL, "cells + static_cast<int64_t>(index) * vocab_size", "cells", (biased_and_penalized_rows,)
    ),
    "sampling: an edit for a neighbour of a token that has one": Mutant(
        ROW, "edited[token / 32] >> token % 32 & 1 ?", "edited[token / 32] != 0 ?", (filters_together,)
    ),
    "sampling: penalties are exchanged": Mutant(
        LAYOUT,
        "  double frequency_penalty;\n  double presence_penalty;\n",
        "  double presence_penalty;\n  double frequency_penalty;\n",
        (biased_and_penalized_rows,),
    ),
    "sampling: a bias brings back what the mask forbids": Mutant(
        ROW,
        "if (!(allowed >> k & 1) ||",
        "if ((!(allowed >> k & 1) && !(edited != nullptr && edited[first / 32] >> (first + k) % 32 & 1)) ||",
        (mixed_rows,),
    ),
    "sampling: a mask's byte for 32 tokens": Mutant(
        ROW, "(mask) + first / kChunk)", "(mask) + first / 32)", (mixed_rows,)
    ),
    "sampling: a chunk beyond the row is read whole": Mutant(
        ROW, "row.is_aligned && first + kChunk <= row.size", "row.is_aligned", (rows_apart,)
    ),
    "sampling: 16 bytes from anywhere": Mutant(
        ROW, "row.is_aligned && first + kChunk", "first + kChunk", (mixed_rows,)
    ),
    "sampling: zeros beyond the row": Mutant(
        ROW, ": from_float<T>(-infinity())", ": from_float<T>(0.0f)", (negative_rows,)
    ),
    "sampling: a logit beyond the row": Mutant(
        ROW,
        "first + k < row.size ? row.logits[first + k] : ",
        "first + k <= row.size ? row.logits[first + k] : ",
        (rows_apart,),
    ),
    "sampling: float32's first half twice": Mutant(
        ROW, "load_16(row.logits + first + part * kNumbers<T>)", "load_16(row.logits + first)", (long_rows,)
    ),
    "sampling: the first chunk for those read ahead": Mutant(
        ROW, "chunks[i].load(row, begin + i * kStep)", "chunks[i].load(row, begin)", (long_rows,)
    ),
    "sampling: chunks read ahead are the first one": Mutant(
        ROW, "visit(begin + i * kStep, values)", "visit(begin, values)", (long_rows,)
    ),
    "sampling: a last chunk that is not whole is left out": Mutant(
        ROW,
        "      if (begin + i * kStep >= row.size) break;\n",
        "      if (begin + i * kStep + kChunk > row.size) break;\n",
        (negative_rows,),
    ),
    "sampling: every second round of chunks": Mutant(
        ROW, "begin += kAhead * kStep", "begin += 2 * kAhead * kStep", (long_rows,)
    ),
    "sampling: infinity is finite": Mutant(ROW, "< 0x7f800000u", "<= 0x7f800000u", (broken_rows,)),
    "sampling: minus infinity is finite": Mutant(
        ROW, "(__float_as_uint(values[k]) & 0x7fffffffu) < 0x7f800000u", "(values[k] < infinity())", (broken_rows,)
    ),
    "sampling: a row's last logit is not looked at": Mutant(
        ROW, "first + k < row.size) most", "first + k + 1 < row.size) most", (broken_rows,)
    ),
    "sampling: the largest logit of those that may be sampled": Mutant(
        ROW,
        "from_order(most), first_of_block",
        "first_of_block(likeliest, memory).value, first_of_block",
        (reported_rows,),
    ),
    "sampling: the last of a thread's equals": Mutant(
        ROW, "if (values[k] > likeliest.value) likeliest", "if (values[k] >= likeliest.value) likeliest", (flat_rows,)
    ),
    "sampling: float16 by half": Mutant(
        NUMBERS, "return __half2float(value);", "return __half2float(value) * 0.5f;", (mixed_rows,)
    ),
}

# What the threads of a row's block find out together.
_BLOCK = {
    "sampling: half of each warp is joined": Mutant(
        BLOCK, "distance = 16; distance > 0", "distance = 8; distance > 0", (mixed_rows,)
    ),
    "sampling: the last warp is left out": Mutant(
        BLOCK, "warp < kSampleWarps; warp++", "warp < kSampleWarps - 1; warp++", (flat_rows,)
    ),
    "sampling: no barrier before other warps are read": Mutant(
        BLOCK, "= value;\n  __syncthreads();\n", "= value;\n", (mixed_rows,)
    ),
    "sampling: a warp gives the next sum while others read the last": Mutant(
        BLOCK, "  __syncthreads();  // until all have read what the next call overwrites\n", "", (flat_rows,)
    ),
    "sampling: -0 is below 0": Mutant(ORDER, "value + 0.0f", "value", (flat_rows,)),
    "sampling: the higher id among equals": Mutant(ORDER, "other_token < token)", "other_token > token)", (flat_rows,)),
    "sampling: no order among equals": Mutant(
        ORDER, " || (other_value == value && other_token < token)", "", (flat_rows,)
    ),
    "sampling: the block's highest id among equals": Mutant(
        ORDER,
        "largest_of_block(mine, memory)",
        "(largest_of_block(mine ^ 0xffffffffu, memory) ^ 0xffffffffu)",
        (flat_rows,),
    ),
    "sampling: a negative maximum loses its sign": Mutant(
        ORDER, ": ~order);", ": ~order & 0x7fffffffu);", (negative_rows,)
    ),
}

# Bias and penalties.
_EDITS = {
    "sampling: a penalty multiplies above zero": Mutant(
        EDITS, "value > 0 ?", "value <= 0 ?", (biased_and_penalized_rows,)
    ),
    "sampling: a penalty divides below zero": Mutant(
        EDITS,
        "value > 0 ? value / row.repetition_penalty : __fmul_rn(value, row.repetition_penalty)",
        "value / row.repetition_penalty",
        (biased_and_penalized_rows,),
    ),
    "sampling: the prompt's tokens have been output": Mutant(
        EDITS, "  if (num_outputs > 0) {\n", "  {\n", (biased_and_penalized_rows,)
    ),
    "sampling: once for every time": Mutant(
        EDITS, "row.frequency_penalty * num_outputs", "row.frequency_penalty", (biased_and_penalized_rows,)
    ),
    "sampling: presence every time": Mutant(
        EDITS,
        "-static_cast<float>(row.presence_penalty)",
        "-static_cast<float>(row.presence_penalty * num_outputs)",
        (biased_and_penalized_rows,),
    ),
    "sampling: negative ids are tokens": Mutant(EDITS, "ids[i] < 0 || ", "", (broken_rows,)),
    "sampling: the vocabulary's size is a token": Mutant(EDITS, "ids[i] >= size", "ids[i] > size", (broken_rows,)),
    "sampling: a thread's last id that is no token": Mutant(
        EDITS, "first = min(first, i);", "first = i;", (broken_rows,)
    ),
    "sampling: the first 512 ids are looked at": Mutant(
        EDITS,
        "for (int i = threadIdx.x; i < count; i += kSampleThreads)",
        "for (int i = threadIdx.x; i < min(count, kSampleThreads); i += kSampleThreads)",
        (broken_rows,),
    ),
    "sampling: bits are left as they were": Mutant(
        EDITS, "word < (row.size + 31) / 32", "word < row.size / 32", (mixed_rows,)
    ),
    "sampling: the first 512 words of bits are cleared": Mutant(
        EDITS, "edited[word] = 0;", "if (word < kSampleThreads) edited[word] = 0;", (long_rows,)
    ),
    "sampling: counts are left as they were": Mutant(
        EDITS, "atomicExch(&cells[lists.history[i]], 0);", "continue;", (biased_and_penalized_rows,)
    ),
    "sampling: counted while others clear": Mutant(
        EDITS, "lists.history[i]], 0);\n  __syncthreads();\n", "lists.history[i]], 0);\n", (biased_and_penalized_rows,)
    ),
    "sampling: penalised while others count": Mutant(
        EDITS,
        "atomicAdd(&cells[token], 1);\n  }\n  __syncthreads();\n",
        "atomicAdd(&cells[token], 1);\n  }\n",
        (biased_and_penalized_rows,),
    ),
    "sampling: penalised while others are biased": Mutant(
        EDITS,
        "    cells[token] = __float_as_int(value);\n  }\n  __syncthreads();\n",
        "    cells[token] = __float_as_int(value);\n  }\n",
        (biased_and_penalized_rows,),
    ),
    "sampling: penalised twice": Mutant(
        EDITS,
        "cells[token], parameters));\n  }\n  __syncthreads();\n",
        "cells[token], parameters));\n  }\n",
        (biased_and_penalized_rows,),
    ),
    "sampling: looked up while bits are set": Mutant(
        EDITS,
        "set_bit(edited, lists.biased[i]);\n  __syncthreads();\n",
        "set_bit(edited, lists.biased[i]);\n",
        (different_edits,),
    ),
    "sampling: the output begins a token late": Mutant(
        EDITS, "i >= parameters.num_prompt", "i > parameters.num_prompt", (biased_and_penalized_rows,)
    ),
    "sampling: a biased token is not penalised": Mutant(
        EDITS,
        "if (take_bit(edited, token)) value = penalize",
        "if (false) value = penalize",
        (biased_and_penalized_rows,),
    ),
    "sampling: the first bias for all tokens": Mutant(
        EDITS, "lists.biases[i])", "lists.biases[0])", (different_edits,)
    ),
    "sampling: a token is penalised as often as it is there": Mutant(
        EDITS, "if (take_bit(edited, token)) cells[token]", "cells[token]", (biased_and_penalized_rows,)
    ),
    "sampling: 512 tokens of a history are counted": Mutant(
        EDITS,
        "if (i >= parameters.num_prompt)",
        "if (i >= parameters.num_prompt && i < kSampleThreads)",
        (different_edits,),
    ),
    "sampling: 512 biases": Mutant(
        EDITS,
        "    const int token = lists.biased[i];\n",
        "    const int token = lists.biased[i % kSampleThreads];\n",
        (different_edits,),
    ),
}

# Log-probabilities.
_REPORT = {
    "sampling: infinite distances": Mutant(
        REPORT, "fminf(most - logit + log_mass, -kLowest)", "most - logit + log_mass", (reported_rows,)
    ),
    "sampling: logits for log-probabilities": Mutant(REPORT, "most - logit + log_mass", "most - logit", (mixed_rows,)),
    "sampling: entries of equal keys at one place": Mutant(
        REPORT, "listed[other] < listed[i]", "listed[other] >> 32 < listed[i] >> 32", (flat_rows,)
    ),
    "sampling: a rank counts equals": Mutant(
        REPORT, "num_likelier += key < chosen", "num_likelier += key <= chosen", (mixed_rows,)
    ),
    "sampling: a thread's rank": Mutant(
        REPORT, "*report.rank = rank;", "*report.rank = num_likelier + 1;", (reported_rows,)
    ),
    "sampling: the last one listed is left out": Mutant(
        REPORT, "first + k <= cut.token", "first + k < cut.token", (flat_rows,)
    ),
    "sampling: equals of the last one are all listed": Mutant(
        REPORT, "key < cut.key || (key == cut.key && first + k <= cut.token)", "key <= cut.key", (flat_rows,)
    ),
    "sampling: the list has what was there before": Mutant(
        REPORT, "  if (threadIdx.x == 0) memory.num_listed = 0;\n", "", (mixed_rows,)
    ),
    "sampling: listed before the list is empty": Mutant(
        REPORT, "memory.num_listed = 0;\n  __syncthreads();\n", "memory.num_listed = 0;\n", (mixed_rows,)
    ),
    "sampling: written before all are listed": Mutant(
        REPORT,
        (
            "  const int rank = 1 + join_block(num_likelier, memory, [](int a, int b) { return a + b; });\n"
            "  write_top(listed, num_top, report);\n"
        ),
        (
            "  write_top(listed, num_top, report);\n"
            "  const int rank = 1 + join_block(num_likelier, memory, [](int a, int b) { return a + b; });\n"
        ),
        (mixed_rows,),
    ),
}

# One of each kind.
_EVERY_RUN = {
    "sampling: rows lie side by side",
    "sampling: log-probabilities relative to what may be sampled",
    "sampling: a negative maximum loses its sign",
    "sampling: penalised twice",
    "sampling: written before all are listed",
}
_ALL = {**_ROW, **_BLOCK, **_EDITS, **_REPORT}

MUTANTS = {name: replace(mutant, is_long_run=name not in _EVERY_RUN) for name, mutant in _ALL.items()}
