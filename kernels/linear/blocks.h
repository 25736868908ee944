// Weights in blocks of 32 inputs with a scale each: what GGUF files hold, regrouped into panels without a loss.
//
// A panel is one block of all its 32 columns after the other, and a block is its codes, then its scales:
//   kQ4: [4][32 columns][4] bytes; byte i of a column's 16 holds input i in its low and input 16 + i in its high bits,
//        unsigned. Then [32] scales and [32] minimums: weight = scale * code + minimum. Both are fp16 (Q4_0, Q4_1), or
//        float where linear.wide_scales (Q4_K, whose scales are products that fp16 cannot hold).
//   kQ8: [8][32 columns][4] bytes, code + 128. Then [32] fp16 scales: weight = scale * code.
//
// Inputs are signed bytes with a scale and a sum of codes for each block (quantize.h). So a block's part of a product is
// scale * (weight scale * dot + minimum * sum): dot and sum are exact integers, the rest is float.
#pragma once
#include "kernels/linear/fused.h"
#include "kernels/linear/linear.h"

namespace tokenbus {

#ifdef __AVX512F__
constexpr int kBlocksRows = 6;
#else
constexpr int kBlocksRows = 1;
#endif

static inline f32x16 load_scales(const float* from) { return load<f32x16>(from); }

static inline f32x16 load_scales(const _Float16* from) {
#ifdef __AVX512F__
  return (f32x16)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#else
  f32x16 result;
  for (int half = 0; half < 2; half++)
    _mm256_storeu_ps(reinterpret_cast<float*>(&result) + 8 * half, _mm256_cvtph_ps(load<__m128i>(from + 8 * half)));
  return result;
#endif
}

template <class Scale>
struct FourBits {
  static constexpr size_t kCodeBytes = 16 * kPanel;
  static constexpr size_t kBytes = kCodeBytes + 2 * kPanel * sizeof(Scale);
  static constexpr int kFetchedFor = 1;  // rows; even one gains a fifth

  // Calls step(input, first, second) for every four inputs: the columns' unsigned codes, four a lane.
  template <class Step>
  static inline void for_each_step(const uint8_t* block, Step&& step) {
#pragma GCC unroll 4
    for (int k = 0; k < 16; k += 4) {
      const i32x16 first = load<i32x16>(block + k * kPanel), second = load<i32x16>(block + k * kPanel + 64);
      step(k, first & 0x0f0f0f0f, second & 0x0f0f0f0f);
      step(k + 16, (first >> 4) & 0x0f0f0f0f, (second >> 4) & 0x0f0f0f0f);
    }
  }

  struct Scales {
    f32x16 scale, minimum;

    Scales(const uint8_t* block, int half) {
      const Scale* scales = reinterpret_cast<const Scale*>(block + kCodeBytes) + 16 * half;
      scale = load_scales(scales);
      minimum = load_scales(scales + kPanel);
    }
    f32x16 add(f32x16 sum, f32x16 dot, float row_scale, float row_sum) const {
      return fused(fused(dot, scale, minimum * row_sum), broadcast(row_scale), sum);
    }
  };

  static inline float weight(const uint8_t* block, int column, int input) {
    const uint8_t both = block[(input % 16 / 4 * kPanel + column) * 4 + input % 4];
    const Scale* scales = reinterpret_cast<const Scale*>(block + kCodeBytes) + column;
    const int code = input < 16 ? both & 15 : both >> 4;
    return static_cast<float>(scales[0]) * code + static_cast<float>(scales[kPanel]);
  }
};

struct EightBits {
  static constexpr size_t kCodeBytes = 32 * kPanel;
  static constexpr size_t kBytes = kCodeBytes + kPanel * sizeof(_Float16);
  static constexpr int kFetchedFor = 3;  // rows; one would lose a fifth

  template <class Step>
  static inline void for_each_step(const uint8_t* block, Step&& step) {
#pragma GCC unroll 8
    for (int k = 0; k < kBlock; k += 4)
      step(k, load<i32x16>(block + k * kPanel), load<i32x16>(block + k * kPanel + 64));
  }

  struct Scales {
    f32x16 scale;

    Scales(const uint8_t* block, int half)
        : scale(load_scales(reinterpret_cast<const _Float16*>(block + kCodeBytes) + 16 * half)) {}
    // The difference is exact: both are integers below 2^24.
    f32x16 add(f32x16 sum, f32x16 dot, float row_scale, float row_sum) const {
      return fused(dot - broadcast(128.0f * row_sum), scale * row_scale, sum);
    }
  };

  static inline float weight(const uint8_t* block, int column, int input) {
    const int code = block[(input / 4 * kPanel + column) * 4 + input % 4] - 128;
    return code * static_cast<float>(reinterpret_cast<const _Float16*>(block + kCodeBytes)[column]);
  }
};

template <class Format, int kRows, class Epilogue>
static inline void blocks_block(const uint8_t* weights, const Rows& rows, int n_in, int row, Epilogue&& epilogue) {
  const int num_blocks = n_in / kBlock;
  const uint8_t* codes = rows.codes + static_cast<size_t>(row) * n_in;
  const float* row_scales = rows.scales + static_cast<size_t>(row) * num_blocks;
  const float* row_sums = rows.sums + static_cast<size_t>(row) * num_blocks;
  f32x16 sums[kRows][2] = {};
  for (int block = 0; block < num_blocks; block++, weights += Format::kBytes, codes += kBlock) {
    if constexpr (kRows >= Format::kFetchedFor) fetch_ahead<Format::kBytes>(weights);
    if constexpr (kRows >= Format::kFetchedFor) fetch_ahead<Format::kBytes>(weights);
    i32x16 dots[kRows][2] = {};
    Format::for_each_step(weights, [&](int k, i32x16 first, i32x16 second) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const i32x16 four = broadcast_bits(codes + static_cast<size_t>(r) * n_in + k);
        dots[r][0] = dot_u8s8(dots[r][0], first, four);
        dots[r][1] = dot_u8s8(dots[r][1], second, four);
      }
    });
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const typename Format::Scales scales(weights, half);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const size_t at = static_cast<size_t>(r) * num_blocks + block;
        const f32x16 dot = __builtin_convertvector(dots[r][half], f32x16);
        sums[r][half] = scales.add(sums[r][half], dot, row_scales[at], row_sums[at]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) epilogue(row + r, sums[r][0], sums[r][1]);
}

template <class Format, int kRows, class Epilogue>
static void blocks_rest(const uint8_t* weights, const Rows& rows, int n_in, int row, int count, Epilogue&& epilogue) {
  if (count == kRows)
    blocks_block<Format, kRows>(weights, rows, n_in, row, epilogue);
  else if constexpr (kRows > 1)
    blocks_rest<Format, kRows - 1>(weights, rows, n_in, row, count, epilogue);
}

template <class Format, class Epilogue>
static void blocks_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                         Epilogue&& epilogue) {
  const size_t panel_bytes = linear.n_in / kBlock * Format::kBytes;
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + panel * panel_bytes;
  const int count = last_row - first_row, blocks = (count + kBlocksRows - 1) / kBlocksRows;
  for (int block = 0, row = first_row; block < blocks; block++) {
    const int size = (last_row - row + blocks - block - 1) / (blocks - block);  // blocks of nearly one size
    blocks_rest<Format, kBlocksRows>(weights, rows, linear.n_in, row, size, epilogue);
    row += size;
  }
}

template <class Epilogue>
static void q4_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                     Epilogue&& epilogue) {
  if (linear.wide_scales)
    blocks_panel<FourBits<float>>(linear, rows, first_row, last_row, panel, epilogue);
  else
    blocks_panel<FourBits<_Float16>>(linear, rows, first_row, last_row, panel, epilogue);
}

template <class Epilogue>
static void q8_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                     Epilogue&& epilogue) {
  blocks_panel<EightBits>(linear, rows, first_row, last_row, panel, epilogue);
}

// The weights of one column, [n_in]: a token's embedding, where the embedding and the head are one matrix.
template <class Format>
static void blocks_column(const Linear& linear, int column, float* out) {
  const size_t panel_bytes = linear.n_in / kBlock * Format::kBytes;
  const uint8_t* block = static_cast<const uint8_t*>(linear.weight) + column / kPanel * panel_bytes;
  for (int start = 0; start < linear.n_in; start += kBlock, block += Format::kBytes)
    for (int input = 0; input < kBlock; input++) out[start + input] = Format::weight(block, column % kPanel, input);
}

static inline void q4_column(const Linear& linear, int column, float* out) {
  if (linear.wide_scales)
    blocks_column<FourBits<float>>(linear, column, out);
  else
    blocks_column<FourBits<_Float16>>(linear, column, out);
}

static inline void q8_column(const Linear& linear, int column, float* out) {
  blocks_column<EightBits>(linear, column, out);
}

}  // namespace tokenbus
