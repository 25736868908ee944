// Registers of floats and of bytes, and the dot products of weight codes with input codes, on either instruction set.
//
// Lanes are output columns. Input codes are signed; four of them, of one row, meet four codes of every lane's column.
// With VNNI the weights' codes are unsigned and one instruction does it all. AVX2 adds its products in 16 bits first,
// so bytes become signed there (two products of 128 * 127 just fit), and nibbles are added up in 16 bits for a block.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

// One register of floats or of integers, whichever size the machine has.
#ifdef __AVX512VNNI__
typedef f32x16 Floats;
typedef i32x16 Ints;
#else
typedef f32x8 Floats;
typedef int32_t Ints __attribute__((vector_size(32)));
#endif

constexpr int kLanes = sizeof(Ints) / sizeof(int32_t);

struct Half {  // fp16
  uint16_t bits;
};

static inline float scale_of(Half value) { return _cvtsh_ss(value.bits); }
static inline float scale_of(float value) { return value; }

static inline Floats load_scales(const float* from) { return load<Floats>(from); }

static inline Floats load_scales(const Half* from) {
#ifdef __AVX512VNNI__
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#else
  return (Floats)_mm256_cvtph_ps(load<__m128i>(from));
#endif
}

static inline Ints four_of(const uint8_t* codes) {
  int32_t bits;
  memcpy(&bits, codes, 4);
  return Ints{} + bits;
}

// 32 inputs in [4][32 columns][4] bytes: the low bits of a column's byte i belong to input i, the high ones to 16 + i.
struct Nibbles {
  using Weights = Ints;

  // Calls step(input, weights) for every four inputs; weights: [kVectors].
  template <int kInputs, int kVectors, class Step>
  static inline void for_each_step(const uint8_t* codes, Step&& step) {
    static_assert(kInputs == 32);
#pragma GCC unroll 4
    for (int k = 0; k < 16; k += 4) {
      Ints low[kVectors], high[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const Ints both = load<Ints>(codes + k * kPanel + v * sizeof(Ints));
        low[v] = both & 0x0f0f0f0f;
        high[v] = (both >> 4) & 0x0f0f0f0f;
      }
      step(k, low);
      step(k + 16, high);
    }
  }

  static inline Ints start(float) { return Ints{}; }

  static inline Ints multiply(Ints sum, Ints weights, Ints four) {
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)four);
#else
    return (Ints)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)weights, (__m256i)four));
#endif
  }

  static inline Ints finish(Ints sum) {
#ifdef __AVX512VNNI__
    return sum;
#else
    return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
  }
};

// [kInputs / 4][32 columns][4] bytes, code + 128.
struct Bytes {
#ifdef __AVX512VNNI__
  using Weights = Ints;
  static inline Weights weights_of(Ints biased) { return biased; }
#else
  struct Weights {
    __m256i code, magnitude;
  };
  static inline Weights weights_of(Ints biased) {
    const __m256i code = _mm256_xor_si256((__m256i)biased, _mm256_set1_epi8(-128));
    return {code, _mm256_abs_epi8(code)};
  }
#endif

  template <int kInputs, int kVectors, class Step>
  static inline void for_each_step(const uint8_t* codes, Step&& step) {
#pragma GCC unroll 4
    for (int k = 0; k < kInputs; k += 4) {
      Weights weights[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) weights[v] = weights_of(load<Ints>(codes + k * kPanel + v * sizeof(Ints)));
      step(k, weights);
    }
  }

  // What the weights' bias will add is taken away from the beginning.
  static inline Ints start([[maybe_unused]] float sum_of_inputs) {
#ifdef __AVX512VNNI__
    return Ints{} - 128 * static_cast<int32_t>(sum_of_inputs);
#else
    return Ints{};
#endif
  }

  static inline Ints multiply(Ints sum, Weights weights, Ints four) {
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)four);
#else
    const __m256i signed_four = _mm256_sign_epi8((__m256i)four, weights.code);
    const __m256i pairs = _mm256_maddubs_epi16(weights.magnitude, signed_four);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
  }

  static inline Ints finish(Ints sum) { return sum; }
};

}  // namespace tokenbus
