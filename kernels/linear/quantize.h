// A product's input rows as bytes, in the form that its weights' encoding wants; nothing to do for bfloat16.
//
// Symmetric, with one scale for a row (int8.h) or for every 32 values (blocks.h): the largest magnitude becomes 127,
// every other value the nearest multiple of its 127th part. Values that are all below 1e-30 count as zero. A row (or
// block) with a value that is no finite number gets NaN for its scale, so that everything computed from it is NaN and
// its sequence is found out.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

// Row `row` of rows.values, for this projection's encoding.
void quantize_row(const Linear& linear, const Rows& rows, int row);

// row: [n_in]. codes: [n_in], q + 128 with q in -127..127. scale: one float.
void quantize_row_int8(const bf16* row, int n_in, uint8_t* codes, float* scale);

// row: [n_in], a multiple of 32. codes: [n_in], signed bytes. scales, sums: [n_in / 32]; a sum is that of the block's
// codes, an integer.
void quantize_row_blocks(const bf16* row, int n_in, uint8_t* codes, float* scales, float* sums);

}  // namespace tokenbus
