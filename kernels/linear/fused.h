// Multiply and add with one rounding.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

// a * b + c rounded once, whatever the compiler would have fused: a row's sums must not depend on its block's size.
static inline f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
#ifdef __AVX512F__
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  f32x16 result;
  for (int half = 0; half < 2; half++) {
    const auto part = [half](f32x16& whole) { return reinterpret_cast<float*>(&whole) + 8 * half; };
    _mm256_storeu_ps(part(result), _mm256_fmadd_ps(_mm256_loadu_ps(part(a)), _mm256_loadu_ps(part(b)),
                                                   _mm256_loadu_ps(part(c))));
  }
  return result;
#endif
}

}  // namespace tokenbus
