// int8 weights with one scale for each output column; inputs as bytes with one scale for every 64 of a row.
//
// A panel is [n_in / 4][32 columns][4] bytes, a weight's code + 128, then [32] float scales: weight = scale * code. n_in
// is a multiple of 64.
//
// Why groups: a few outliers would leave the other values of a whole row only some of the 255 codes. With one scale for
// a row, SmolLM2-135M diverges from bfloat16 four times as far; the groups cost a tenth of the speed.
#pragma once
#include "kernels/linear/grouped.h"

namespace tokenbus {

constexpr size_t kInt8Tail = kPanel * sizeof(float);

struct Int8 {
  using Codes = Bytes;
  static constexpr int kInputs = kInt8Group;
  static constexpr size_t kBytes = kInputs * kPanel;
  static constexpr size_t kTailBytes = kInt8Tail;
  static constexpr int kFetchedFor = 3;
#ifdef __AVX512VNNI__
  static constexpr int kBlockRows = 8;
#else
  static constexpr int kBlockRows = 4;
#endif

  struct Scales {
    Scales(const uint8_t*, int) {}
    Floats add(Floats sum, Floats dot, float row_scale, float) const { return fused(dot, Floats{} + row_scale, sum); }
  };

  static inline Floats finish(Floats sum, const uint8_t* tail, int column) {
    return sum * load<Floats>(tail + column * sizeof(float));
  }

  static inline float weight(const uint8_t* group, const uint8_t* tail, int column, int input) {
    return load<float>(tail + column * sizeof(float)) * (group[(input / 4 * kPanel + column) * 4 + input % 4] - 128);
  }
};

static void int8_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  grouped_panel<Int8>(linear, rows, first_row, last_row, panel, sums);
}

static inline void int8_column(const Linear& linear, int column, float* out) {
  grouped_column<Int8>(linear, column, out);
}

}  // namespace tokenbus
