#include "kernels/linear/quantize.h"

#include <limits>

namespace tokenbus {

namespace {

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));

constexpr bf16 kMagnitude = 0x7fff, kInfinity = 0x7f80;

// Bits of the largest magnitude: magnitudes compare like their bits, infinity and NaN as the largest.
template <int kGroup>
inline bf16 largest_magnitude(const bf16* values) {
  i16x16 largest = {};
  for (int k = 0; k < kGroup; k += 16) {
    const i16x16 magnitude = load<i16x16>(values + k) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  const __m128i eight = _mm_max_epi16(_mm256_castsi256_si128((__m256i)largest), _mm256_extracti128_si256((__m256i)largest, 1));
  // The smallest of the complements, which is the one horizontal instruction there is.
  return static_cast<bf16>(~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1))), 0));
}

struct CodeStep {
  float size;     // what a code of 1 means
  float inverse;  // 0 where all codes are
};

inline CodeStep step_for(bf16 largest) {
  if (largest >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  const float magnitude = to_float(largest);
  if (magnitude < 1e-30f) return {0.0f, 0.0f};
  return {magnitude / 127.0f, 127.0f / magnitude};
}

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the low bits
constexpr int32_t kRounderBits = 0x4b400000;

inline int32_t sum_of_lanes(i32x16 value) {
  __m256i half = _mm256_add_epi32(load<__m256i>(&value), load<__m256i>(reinterpret_cast<const char*>(&value) + 32));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

template <int kGroup>
void quantize_groups(const bf16* row, int n_in, uint8_t* codes, float* scales, float* sums) {
  for (int group = 0; group < n_in / kGroup; group++, row += kGroup, codes += kGroup) {
    const CodeStep step = step_for(largest_magnitude<kGroup>(row));
    scales[group] = step.size;
    if (step.inverse == 0.0f) {
      memset(codes, 0, kGroup);
      sums[group] = 0.0f;
      continue;
    }
    i32x16 sum = {};
    for (int k = 0; k < kGroup; k += 16) {
      const i32x16 sixteen = (i32x16)(load_bf16(row + k) * step.inverse + kRounder) - kRounderBits;
      store(codes + k, __builtin_convertvector(sixteen, u8x16));
      sum += sixteen;
    }
    sums[group] = static_cast<float>(sum_of_lanes(sum));
  }
}

}  // namespace

int group_size(const Linear& linear) {
  switch (linear.encoding) {
    case kBf16: return 0;
    case kInt8: return kInt8Group;
    default: return kBlock;
  }
}

void quantize_row(const Linear& linear, const Rows& rows, int row) {
  const int size = group_size(linear);
  if (size == 0) return;
  const size_t start = static_cast<size_t>(row) * linear.n_in, group = start / size;
  const auto quantize = size == kBlock ? quantize_groups<kBlock> : quantize_groups<kInt8Group>;
  quantize(rows.values + start, linear.n_in, rows.codes + start, rows.scales + group, rows.sums + group);
}

}  // namespace tokenbus
