// Sixteen lanes, whatever the machine: one register of 512 bits, or two of 256.
//
// The kernels are written against these few functions and g++'s vector types, whose + - * / and comparisons work lane
// by lane. With AVX512-BF16 the dot product of pairs is one instruction; AVX2 has none (pairs.h).
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifndef __AVX512F__
#include "kernels/native/halves.h"
#else
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
#endif
typedef uint16_t bf16;

template <class Vector>
static inline Vector load(const void* from) {
  Vector value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector>
static inline void store(void* to, Vector value) {
  memcpy(to, &value, sizeof value);
}

#ifdef __AVX512F__
static inline f32x16 broadcast(float value) { return f32x16{} + value; }
#else
// Half by half: as one piece they would pass through the stack, 16 bytes at a time.
template <>
inline f32x16 load<f32x16>(const void* from) {
  return {load<f32x8>(from), load<f32x8>(static_cast<const char*>(from) + sizeof(f32x8))};
}
template <>
inline void store<f32x16>(void* to, f32x16 value) {
  store(to, value.low);
  store(static_cast<char*>(to) + sizeof(f32x8), value.high);
}

static inline f32x16 broadcast(float value) { return f32x16(value); }
#endif

static inline i32x16 broadcast_bits(const void* four_bytes) {
  int32_t bits;
  memcpy(&bits, four_bytes, 4);
  return i32x16{} + bits;
}

static inline float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

// Round to nearest, ties to even; what is not a number stays so.
static inline bf16 to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16>(bits >> 16 | 0x40);
  return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#ifdef __AVX512F__
typedef uint16_t bf16x16 __attribute__((vector_size(32)));

// In each lane yes where the mask has all bits set, no where it has none.
template <class Lanes>
static inline Lanes choose(i32x16 mask, Lanes yes, Lanes no) {
  return mask ? yes : no;
}

static inline f32x8 first_eight(f32x16 value) { return __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7); }
static inline f32x8 last_eight(f32x16 value) {
  return __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline i32x16 whole_numbers(f32x16 value) { return __builtin_convertvector(value, i32x16); }

static inline f32x16 load_bf16(const bf16* from) {
  return (f32x16)(__builtin_convertvector(load<bf16x16>(from), u32x16) << 16);
}

static inline void store_bf16(bf16* to, f32x16 value) { store(to, (bf16x16)_mm512_cvtneps_pbh((__m512)value)); }

// sum + a's low half * b's low half + a's high half * b's high half, where a lane holds two bf16.
static inline f32x16 dot_bf16(f32x16 sum, i32x16 a, i32x16 b) {
  return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
template <class Lanes>
static inline Lanes choose(i32x16 mask, Lanes yes, Lanes no) {
  return {mask.low ? yes.low : no.low, mask.high ? yes.high : no.high};
}

static inline f32x8 first_eight(f32x16 value) { return value.low; }
static inline f32x8 last_eight(f32x16 value) { return value.high; }

static inline i32x16 whole_numbers(f32x16 value) {
  return {(i32x8)_mm256_cvtps_epi32((__m256)value.low), (i32x8)_mm256_cvtps_epi32((__m256)value.high)};
}

static inline f32x16 load_bf16(const bf16* from) {
  const __m256i bits = load<__m256i>(from);
  const __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
  return f32x16(u32x16((u32x8)_mm256_cvtepu16_epi32(low), (u32x8)_mm256_cvtepu16_epi32(high)) << 16);
}

// To bf16 and back.
static inline f32x16 rounded_to_bf16(f32x16 value) {
  const u32x16 bits(value);
  const u32x16 rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return f32x16(choose(value == value, rounded, bits | 0x400000) & 0xffff0000);
}

static inline void store_bf16(bf16* to, f32x16 value) {
  const u32x16 bits = u32x16(rounded_to_bf16(value)) >> 16;
  store(to, _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)bits.low, (__m256i)bits.high), 0xd8));
}
#endif

// a * b + c rounded once: said outright, since the compiler's choice which product to fuse may differ between places that
// must agree.
static inline f32x8 fused(f32x8 a, f32x8 b, f32x8 c) {
  return (f32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
#ifdef __AVX512F__
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return {fused(a.low, b.low, c.low), fused(a.high, b.high, c.high)};
#endif
}

static inline f32x16 max(f32x16 a, f32x16 b) { return choose(a > b, a, b); }

// The lanes added in pairs, the pairs in pairs, and so on: the same order on every machine.
static inline float sum_of(f32x16 value) {
  float lanes[16];
  memcpy(lanes, &value, sizeof lanes);
  for (int width = 8; width > 0; width /= 2)
    for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// e^x by 2^n * 2^r with a polynomial of degree 6 for 2^r, r in [-1/2, 1/2]; relative error some 1e-7. Below -87 it is
// that of -87 (1e-38), above 88 that of 88.
static inline f32x16 exp(f32x16 x) {
  x = choose(x > -87.0f, x, broadcast(-87.0f));
  x = choose(x < 88.0f, x, broadcast(88.0f));
  const f32x16 scaled = x * 1.44269504f;
  const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x16 whole = (scaled + magic) - magic;
  f32x16 rest = x - whole * 0.693359375f;
  rest = rest - whole * -2.12194440e-4f;
  f32x16 power = broadcast(1.3981999507e-3f);
  power = power * rest + 8.3334519073e-3f;
  power = power * rest + 4.1665795894e-2f;
  power = power * rest + 1.6666665459e-1f;
  power = power * rest + 5.0000001201e-1f;
  power = (power * rest) * rest + rest + 1.0f;
  const i32x16 exponent = whole_numbers(whole) << 23;
  return (f32x16)((i32x16)power + exponent);
}
