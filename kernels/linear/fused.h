// One register of floats or of integers, whichever size the machine has, and multiply and add with one rounding.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

#ifdef __AVX512VNNI__
typedef f32x16 Floats;
typedef i32x16 Ints;
#else
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
#endif

constexpr int kLanes = sizeof(Ints) / sizeof(int32_t);

// a * b + c rounded once, whatever the compiler would have fused: a row's sums must not depend on its block's size.
static inline Floats fused(Floats a, Floats b, Floats c) {
#ifdef __AVX512VNNI__
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

}  // namespace tokenbus
