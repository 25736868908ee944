// Weights in blocks of 32 inputs with a scale each: what GGUF files hold, regrouped into panels without a loss.
//
// A panel is one block of all its 32 columns after the other, and a block is its codes (see bytes.h), then its scales:
//   kQ4: nibbles, then [32] scales and [32] minimums: weight = scale * code + minimum. Both are fp16 (Q4_0, Q4_1), or
//        float where linear.wide_scales (Q4_K, whose scales are products that fp16 cannot hold).
//   kQ8: bytes, then [32] fp16 scales: weight = scale * code.
//
// A block's part of a product is input scale * (weight scale * dot + minimum * sum of input codes): dot and sum are exact
// integers, the rest is float.
#pragma once
#include "kernels/linear/grouped.h"

namespace tokenbus {

#ifdef __AVX512VNNI__
constexpr int kBlocksRows = 6;
#else
constexpr int kBlocksRows = 4;
#endif

template <class Scale>
struct FourBits {
  using Codes = Nibbles;
  static constexpr int kInputs = kBlock, kBlockRows = kBlocksRows;
  static constexpr size_t kCodeBytes = kBlock / 2 * kPanel, kBytes = kCodeBytes + 2 * kPanel * sizeof(Scale);
  static constexpr size_t kTailBytes = 0;
  static constexpr int kFetchedFor = 1;  // even one row gains a fifth

  struct Scales {
    Floats scale, minimum;

    Scales(const uint8_t* block, int column) {
      const Scale* scales = reinterpret_cast<const Scale*>(block + kCodeBytes) + column;
      scale = load_scales(scales);
      minimum = load_scales(scales + kPanel);
    }
    Floats add(Floats sum, Floats dot, float row_scale, float row_sum) const {
      return fused(fused(dot, scale, minimum * row_sum), Floats{} + row_scale, sum);
    }
  };

  static inline Floats finish(Floats sum, const uint8_t*, int) { return sum; }

  static inline float weight(const uint8_t* block, const uint8_t*, int column, int input) {
    const uint8_t both = block[(input % 16 / 4 * kPanel + column) * 4 + input % 4];
    const Scale* scales = reinterpret_cast<const Scale*>(block + kCodeBytes) + column;
    const int code = input < 16 ? both & 15 : both >> 4;
    return scale_of(scales[0]) * code + scale_of(scales[kPanel]);
  }
};

struct EightBits {
  using Codes = Bytes;
  static constexpr int kInputs = kBlock, kBlockRows = kBlocksRows;
  static constexpr size_t kCodeBytes = kBlock * kPanel, kBytes = kCodeBytes + kPanel * sizeof(Half);
  static constexpr size_t kTailBytes = 0;
  static constexpr int kFetchedFor = 3;  // one row would lose a fifth

  struct Scales {
    Floats scale;

    Scales(const uint8_t* block, int column)
        : scale(load_scales(reinterpret_cast<const Half*>(block + kCodeBytes) + column)) {}
    Floats add(Floats sum, Floats dot, float row_scale, float) const { return fused(dot, scale * row_scale, sum); }
  };

  static inline Floats finish(Floats sum, const uint8_t*, int) { return sum; }

  static inline float weight(const uint8_t* block, const uint8_t*, int column, int input) {
    const int code = block[(input / 4 * kPanel + column) * 4 + input % 4] - 128;
    return code * scale_of(reinterpret_cast<const Half*>(block + kCodeBytes)[column]);
  }
};

static void q4_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  if (linear.wide_scales)
    grouped_panel<FourBits<float>>(linear, rows, first_row, last_row, panel, sums);
  else
    grouped_panel<FourBits<Half>>(linear, rows, first_row, last_row, panel, sums);
}

static void q8_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  grouped_panel<EightBits>(linear, rows, first_row, last_row, panel, sums);
}

static inline void q4_column(const Linear& linear, int column, float* out) {
  if (linear.wide_scales)
    grouped_column<FourBits<float>>(linear, column, out);
  else
    grouped_column<FourBits<Half>>(linear, column, out);
}

static inline void q8_column(const Linear& linear, int column, float* out) {
  grouped_column<EightBits>(linear, column, out);
}

}  // namespace tokenbus
