// One task of a product, whatever the encoding of its weights.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

// Rows of one task at most: their sums (8 KB) stay in the nearest cache until the caller has used them.
constexpr int kTaskRows = 64;

// sums: [last_row - first_row][32], the panel's columns without bias; at most kTaskRows rows.
void compute_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums);

}  // namespace tokenbus
