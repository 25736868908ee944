// One register of lanes, as wide as the machine has them: 16 floats with AVX512, else 8.
//
// The sampler's passes over the vocabulary ask "which lanes" all the time. Masks of lanes are one instruction on native
// registers, while g++ takes comparisons of a wider vector type than the machine's apart, lane by lane.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>

namespace tokenbus::lanes {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Longs __attribute__((vector_size(4 * kLanes)));   // half as many lanes of twice the width
typedef double Doubles __attribute__((vector_size(4 * kLanes)));  // likewise
typedef uint32_t Mask;                                            // bit i: lane i

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static inline Floats load(const float* from) {
  Floats values;
  memcpy(&values, from, sizeof values);
  return values;
}

static inline void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }

// The `count` floats there are, then copies of `filler`.
static inline Floats load_some(const float* from, int count, float filler) {
  if (count >= kLanes) return load(from);
  Floats values = Floats{} + filler;
  if (count > 0) memcpy(&values, from, count * sizeof(float));
  return values;
}

static inline void store_some(float* to, Floats values, int count) {
  memcpy(to, &values, (count < kLanes ? count : kLanes) * sizeof(float));
}

// Lanes 0 .. count - 1, none for a negative count.
static inline Mask first_lanes(int count) {
  return count >= kLanes ? (1u << kLanes) - 1 : count <= 0 ? 0 : (1u << count) - 1;
}

#ifdef __AVX512F__
static inline Mask above(Floats a, Floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
static inline Mask at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
static inline Mask equal(Floats a, Floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
static inline Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
static inline Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
static inline Floats select(Mask mask, Floats yes, Floats no) {
  return (Floats)_mm512_mask_blend_ps(mask, (__m512)no, (__m512)yes);
}
static inline Floats to_floats(Ints values) { return (Floats)_mm512_cvtepi32_ps((__m512i)values); }
static inline Doubles low_half(Floats values) { return (Doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)values)); }
static inline Doubles high_half(Floats values) {
  return (Doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)values, 1));
}
// The 64-bit products of the low 32 bits of each lane.
static inline Longs multiply(Longs a, Longs b) { return (Longs)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
static inline Longs interleave_low(Longs a, Longs b) { return (Longs)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b); }
static inline Longs interleave_high(Longs a, Longs b) { return (Longs)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b); }
#else
static inline Mask above(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
}
static inline Mask at_least(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
}
static inline Mask equal(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ));
}
static inline Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
static inline Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
static inline Floats select(Mask mask, Floats yes, Floats no) {
  const Ints bits = {1, 2, 4, 8, 16, 32, 64, 128};
  return (Floats)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)((bits & static_cast<int32_t>(mask)) == bits));
}
static inline Floats to_floats(Ints values) { return (Floats)_mm256_cvtepi32_ps((__m256i)values); }
static inline Doubles low_half(Floats values) { return (Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)values)); }
static inline Doubles high_half(Floats values) {
  return (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)values, 1));
}
static inline Longs multiply(Longs a, Longs b) { return (Longs)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
static inline Longs interleave_low(Longs a, Longs b) { return (Longs)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b); }
static inline Longs interleave_high(Longs a, Longs b) { return (Longs)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b); }
#endif

static inline float largest_of(Floats values) {
  float largest = values[0];
  for (int lane = 1; lane < kLanes; lane++) largest = values[lane] > largest ? values[lane] : largest;
  return largest;
}

static inline float smallest_of(Floats values) { return -largest_of(-values); }

static inline double sum_of(Doubles values) {
  double sum = 0;
  for (int lane = 0; lane < kLanes / 2; lane++) sum += values[lane];
  return sum;
}

// e^x for x from -80 to 0: 2^n e^r with |r| <= ln 2 / 2 and the series of e^r up to r^7; relative error some 1e-7.
static inline Floats exp(Floats x) {
  const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds, the low bits are the integer
  const Floats shifted = x * 1.44269504f + magic;
  const Floats whole = shifted - magic;
  const Floats rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Floats power = Floats{} + 1.0f / 5040;
  power = power * rest + 1.0f / 720;
  power = power * rest + 1.0f / 120;
  power = power * rest + 1.0f / 24;
  power = power * rest + 1.0f / 6;
  power = power * rest + 0.5f;
  power = power * rest + 1.0f;
  power = power * rest + 1.0f;
  return (Floats)((Ints)power + ((Ints)shifted << 23));
}

// The same in double precision, with the series up to r^11; relative error under 1e-13.
static inline Doubles exp(Doubles x) {
  const Doubles magic = Doubles{} + 6755399441055744.0;  // 1.5 * 2^52
  const Doubles shifted = x * 1.4426950408889634 + magic;
  const Doubles whole = shifted - magic;
  const Doubles rest = (x - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;
  Doubles power = Doubles{} + 1.0 / 39916800;
  power = power * rest + 1.0 / 3628800;
  power = power * rest + 1.0 / 362880;
  power = power * rest + 1.0 / 40320;
  power = power * rest + 1.0 / 5040;
  power = power * rest + 1.0 / 720;
  power = power * rest + 1.0 / 120;
  power = power * rest + 1.0 / 24;
  power = power * rest + 1.0 / 6;
  power = power * rest + 0.5;
  power = power * rest + 1.0;
  power = power * rest + 1.0;
  return (Doubles)((Longs)power + ((Longs)shifted << 52));
}

}  // namespace tokenbus::lanes
