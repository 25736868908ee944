// What is known of some rows after a part or several: the online softmax's state, and how two of them become one.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

#ifdef __AVX512F__
constexpr int kBlockRows = 12;
#else
constexpr int kBlockRows = 6;
#endif

constexpr float kNoScore = -1e30f;

// 2^x for x <= 0, exactly 0 below -126; relative error 3e-6, far below the rounding of weights to bf16. NaN stays NaN.
static inline f32x16 power_of_two(f32x16 x) {
#ifdef __AVX512F__
  // With a mask of all lanes, for g++ 12 warns of its own header where there is none.
  const __mmask16 all = 0xffff;
  x = (f32x16)_mm512_maskz_max_ps(all, (__m512)broadcast(-200.0f), (__m512)x);  // this order keeps NaN
  const f32x16 whole = (f32x16)_mm512_maskz_roundscale_ps(all, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
  const i32x16 vanishes = x < -126.0f;
  x = choose(vanishes, broadcast(-126.0f), x);
  const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x16 whole = (x + magic) - magic;
#endif
  const f32x16 rest = x - whole;
  f32x16 power = broadcast(9.58285291e-3f);
  power = fused(power, rest, broadcast(5.59064266e-2f));
  power = fused(power, rest, broadcast(2.40240986e-1f));
  power = fused(power, rest, broadcast(6.93124193e-1f));
  power = fused(power, rest, broadcast(1.0f));
#ifdef __AVX512F__
  return (f32x16)_mm512_maskz_scalef_ps(all, (__m512)power, (__m512)whole);
#else
  const i32x16 exponent = whole_numbers(whole) << 23;
  return (f32x16)(((i32x16)power + exponent) & ~vanishes);
#endif
}

// The states of consecutive rows lie together: sums, outputs, greatest scores.
struct RowStates {
  f32x16* sums;     // [rows]: the weights' sum, key position p in lane p % 16
  float* outputs;   // [rows][head_dim]: the weighted sum of values
  float* greatest;  // [rows]: of the scores, times scale * log2(e), so that weights are powers of two

  static size_t registers(int rows, int head_dim) {
    return static_cast<size_t>(rows) + static_cast<size_t>(rows) * head_dim / 16 + (rows + 15) / 16;
  }

  static RowStates at(f32x16* memory, int rows, int head_dim) {
    float* outputs = reinterpret_cast<float*>(memory + rows);
    return {memory, outputs, outputs + static_cast<size_t>(rows) * head_dim};
  }

  RowStates from(int row, int head_dim) const {
    return {sums + row, outputs + static_cast<size_t>(row) * head_dim, greatest + row};
  }

  // Nothing seen yet.
  void clear(int rows, int head_dim) const {
    memset(sums, 0, sizeof(f32x16) * rows);
    memset(outputs, 0, sizeof(float) * rows * head_dim);
    for (int row = 0; row < rows; row++) greatest[row] = kNoScore;
  }
};

// By what the older and the newer of two states are multiplied before they are added, for up to 16 rows.
struct Rescaling {
  alignas(64) float older[16] = {};
  alignas(64) float newer[16] = {};

  // greatest becomes the greater of both.
  Rescaling(float* greatest, const float* newer_greatest, int rows) {
    for (int row = 0; row < rows; row++) {
      const float both = greatest[row] > newer_greatest[row] ? greatest[row] : newer_greatest[row];
      older[row] = greatest[row] - both;
      newer[row] = newer_greatest[row] - both;
      greatest[row] = both;
    }
    store(older, power_of_two(load<f32x16>(older)));
    store(newer, power_of_two(load<f32x16>(newer)));
  }

  f32x16 of(int row, f32x16 old_value, f32x16 new_value) const {
    return fused(old_value, broadcast(older[row]), new_value * broadcast(newer[row]));
  }
};

// Adds newer, of the same rows and of later parts, to states.
static inline void merge_states(const RowStates& states, const RowStates& newer, int rows, int head_dim) {
  for (int first = 0; first < rows; first += kBlockRows) {
    const int count = rows - first < kBlockRows ? rows - first : kBlockRows;
    const RowStates into = states.from(first, head_dim), from = newer.from(first, head_dim);
    const Rescaling rescaling(into.greatest, from.greatest, count);
    for (int row = 0; row < count; row++) {
      into.sums[row] = rescaling.of(row, into.sums[row], from.sums[row]);
      float* output = into.outputs + static_cast<size_t>(row) * head_dim;
      const float* added = from.outputs + static_cast<size_t>(row) * head_dim;
      for (int d = 0; d < head_dim; d += 16)
        store(output + d, rescaling.of(row, load<f32x16>(output + d), load<f32x16>(added + d)));
    }
  }
}

}  // namespace tokenbus
