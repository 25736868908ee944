// A projection's weights, packed into panels of 32 output columns, and the rows it is applied to.
//
// Each encoding has a header that offers
//     template <class Epilogue> void <encoding>_panel(const Linear&, const Rows&, int first_row, int last_row,
//                                                     int panel, Epilogue&&)
// which calls epilogue(row, first, second) once for each row: the sums of the panel's columns 0..15 and 16..31, without
// bias. A row's sums do not depend on which other rows are computed with it: every encoding adds in one fixed order.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

constexpr int kPanel = 32;
constexpr int kBlock = 32;  // inputs that share a scale, where an encoding has them

enum Encoding : int32_t { kBf16 = 0, kInt8 = 1, kQ4 = 2, kQ8 = 3 };

// Mirrored by LinearStruct in kernels/linear/packing.py. n_out counts columns without those that fill the last panel.
struct Linear {
  int32_t encoding;
  int32_t n_out;
  int32_t n_in;
  int32_t wide_scales;  // kQ4 alone: a block's scales are float, not fp16
  const void* weight;  // as the encoding's header says
  const float* bias;   // [panels * 32], or null

  int panels() const { return (n_out + kPanel - 1) / kPanel; }
};

// Input rows. values is always there; the quantised form is written by the encoding's own function, before the product.
struct Rows {
  const bf16* values;  // [M, n_in]
  uint8_t* codes;      // [M, n_in], quantised activations
  float* scales;       // [M] or [M, n_in / 32]
  float* sums;         // [M, n_in / 32], where an encoding needs them
};

}  // namespace tokenbus
