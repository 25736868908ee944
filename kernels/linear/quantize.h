// A product's input rows as bytes, in the form that its weights' encoding wants; nothing to do for bfloat16.
//
// Values are quantised in groups (kInt8Group, kBlock) with a scale each, symmetrically: the largest magnitude becomes
// 127, every other value the nearest multiple of its 127th part. Values of a group that are all below 1e-30 count as
// zero. A group with a value that is no finite number gets NaN for its scale, so that everything computed from it is
// NaN and its sequence is found out.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

// Row `row` of rows.values, for this projection's encoding: signed codes, and for each group of them scale and sum.
void quantize_row(const Linear& linear, const Rows& rows, int row);

}  // namespace tokenbus
