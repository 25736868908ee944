#include "kernels/linear/quantize.h"

#include <limits>

namespace tokenbus {

namespace {

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));

constexpr bf16 kMagnitude = 0x7fff, kInfinity = 0x7f80;

// Bits of the largest magnitude: magnitudes compare like their bits, infinity and NaN as the largest.
bf16 largest_magnitude(const bf16* values, int count) {
  i16x16 largest = {};
  int k = 0;
  for (; k + 16 <= count; k += 16) {
    const i16x16 magnitude = load<i16x16>(values + k) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  int result = 0;
  for (int lane = 0; lane < 16; lane++) result = largest[lane] > result ? largest[lane] : result;
  for (; k < count; k++) result = (values[k] & kMagnitude) > result ? values[k] & kMagnitude : result;
  return static_cast<bf16>(result);
}

struct CodeStep {
  float size;     // what a code of 1 means
  float inverse;  // 0 where all codes are
};

CodeStep step_for(bf16 largest) {
  if (largest >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  const float magnitude = to_float(largest);
  if (magnitude < 1e-30f) return {0.0f, 0.0f};
  return {magnitude / 127.0f, 127.0f / magnitude};
}

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the low bits
constexpr int32_t kRounderBits = 0x4b400000;

i32x16 codes_of(const bf16* values, float inverse) {
  return (i32x16)(load_bf16(values) * inverse + kRounder) - kRounderBits;
}

int32_t code_of(bf16 value, float inverse) {
  const float shifted = to_float(value) * inverse + kRounder;
  int32_t bits;
  memcpy(&bits, &shifted, 4);
  return bits - kRounderBits;
}

}  // namespace

void quantize_row_int8(const bf16* row, int n_in, uint8_t* codes, float* scale) {
  const CodeStep step = step_for(largest_magnitude(row, n_in));
  *scale = step.size;
  if (step.inverse == 0.0f) {
    memset(codes, 128, n_in);
    return;
  }
  int k = 0;
  for (; k + 16 <= n_in; k += 16)
    store(codes + k, __builtin_convertvector(codes_of(row + k, step.inverse) + 128, u8x16));
  for (; k < n_in; k++) codes[k] = static_cast<uint8_t>(code_of(row[k], step.inverse) + 128);
}

void quantize_row_blocks(const bf16* row, int n_in, uint8_t* codes, float* scales, float* sums) {
  for (int block = 0; block < n_in / kBlock; block++, row += kBlock, codes += kBlock) {
    const CodeStep step = step_for(largest_magnitude(row, kBlock));
    scales[block] = step.size;
    if (step.inverse == 0.0f) {
      memset(codes, 0, kBlock);
      sums[block] = 0.0f;
      continue;
    }
    const i32x16 first = codes_of(row, step.inverse), second = codes_of(row + 16, step.inverse);
    store(codes, __builtin_convertvector(first, u8x16));
    store(codes + 16, __builtin_convertvector(second, u8x16));
    sums[block] = sum_of(__builtin_convertvector(first + second, f32x16));
  }
}

void quantize_row(const Linear& linear, const Rows& rows, int row) {
  const size_t start = static_cast<size_t>(row) * linear.n_in, block = start / kBlock;
  if (linear.encoding == kInt8)
    quantize_row_int8(rows.values + start, linear.n_in, rows.codes + start, rows.scales + row);
  else if (linear.encoding != kBf16)
    quantize_row_blocks(rows.values + start, linear.n_in, rows.codes + start, rows.scales + block, rows.sums + block);
}

}  // namespace tokenbus
