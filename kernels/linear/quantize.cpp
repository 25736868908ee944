#include "kernels/linear/quantize.h"

#include <limits>

namespace tokenbus {

namespace {

constexpr bf16 kMagnitude = 0x7fff, kInfinity = 0x7f80;

// Bits of the largest magnitude: magnitudes compare like their bits, infinity and NaN as the largest.
template <int kGroup>
inline bf16 largest_magnitude(const bf16* values) {
  __m256i largest = _mm256_setzero_si256();
  for (int k = 0; k < kGroup; k += 16)
    largest = _mm256_max_epi16(largest, _mm256_and_si256(load<__m256i>(values + k), _mm256_set1_epi16(kMagnitude)));
  const __m128i eight = _mm_max_epi16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
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

// Eight values times the inverse, to the nearest integers, ties to even.
inline __m256i rounded(const bf16* values, __m256 inverse) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(values)), 16);
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(bits), inverse));
}

inline int32_t sum_of_lanes(__m256i value) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
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
    const __m256 inverse = _mm256_set1_ps(step.inverse);
    __m256i sum = _mm256_setzero_si256();
    for (int k = 0; k < kGroup; k += 16) {
      const __m256i first = rounded(row + k, inverse), second = rounded(row + k + 8, inverse);
      const __m256i sixteen = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
      store(codes + k, _mm_packs_epi16(_mm256_castsi256_si128(sixteen), _mm256_extracti128_si256(sixteen, 1)));
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
    }
    sums[group] = static_cast<float>(sum_of_lanes(sum));
  }
}

}  // namespace

void quantize_row(const Linear& linear, const Rows& rows, int row) {
  if (linear.encoding == kBf16) return;
  const int size = linear.encoding == kInt8 ? kInt8Group : kBlock;
  const size_t start = static_cast<size_t>(row) * linear.n_in, group = start / size;
  const auto quantize = size == kBlock ? quantize_groups<kBlock> : quantize_groups<kInt8Group>;
  quantize(rows.values + start, linear.n_in, rows.codes + start, rows.scales + group, rows.sums + group);
}

}  // namespace tokenbus
