// A projection's weights, packed into panels of 32 output columns, and the rows it is applied to.
//
// Each encoding has a header that offers
//     void <encoding>_panel(const Linear&, const Rows&, int first_row, int last_row, int panel, float* sums)
// which writes the sums of the panel's columns for each row, [last_row - first_row][32], without bias. A row's sums do not
// depend on which other rows are computed with it: every encoding adds in one fixed order.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

constexpr int kPanel = 32;
constexpr int kBlock = 32;      // inputs of a block of kQ4 and kQ8: what has one scale
constexpr int kInt8Group = 64;  // input values that have one scale where the weights are kInt8

enum Encoding : int32_t { kBf16 = 0, kInt8 = 1, kQ4 = 2, kQ8 = 3 };

// Mirrored by LinearStruct in kernels/linear/packing.py. n_out counts columns without those that fill the last panel.
struct Linear {
  int32_t encoding;
  int32_t n_out;
  int32_t n_in;
  int32_t wide_scales;  // kQ4 alone: a block's scales are float, not fp16
  const void* weight;   // as the encoding's header says
  const float* bias;    // [panels * 32], or null

  int panels() const { return (n_out + kPanel - 1) / kPanel; }
};

// Input rows. values is always there; the quantised form is written before the product (quantize.h), if the encoding reads it.
struct Rows {
  const bf16* values;  // [M, n_in]
  uint8_t* codes;      // [M, n_in], signed
  float* scales;       // [M, groups], what a code of 1 means
  float* sums;         // [M, groups], of a group's codes
};

// Asks for so many bytes of weights.
template <int kBytes>
static inline void fetch(const void* weights) {
  constexpr int kLine = 64;
#pragma GCC unroll 32
  for (int byte = 0; byte < kBytes; byte += kLine)
    _mm_prefetch(static_cast<const char*>(weights) + byte, _MM_HINT_T0);
}

// Asks for weights that will be wanted some panels' rows from here. With several rows to multiply the processor's own
// prefetching falls behind: a step's products of 16 rows in bfloat16 took 7.4 ms without this and 5.5 with it (Zen 5, two
// cores). With one or two it keeps up, and this would only cost.
template <int kBytes>
static inline void fetch_ahead(const void* weights) {
  fetch<kBytes>(static_cast<const char*>(weights) + 12288);
}

}  // namespace tokenbus
