// Products of pairs: registers of two bf16 in each lane times a pair of every row, added to sums.
//
// The registers are weights or what the cache holds, packed for this. A row's pair is of its input, its query, its
// attention weights. AVX512-BF16 multiplies pairs as they are. AVX2 multiplies floats: a row's numbers are widened
// beforehand, the registers' on their way, by a shift and a mask, once for all rows. Either way a lane's sum takes the
// pair's first product, then its second.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

#ifdef __AVX512BF16__
typedef bf16 RowNumber;

static inline void set_row(RowNumber* to, const bf16* from, int count) { memcpy(to, from, sizeof(bf16) * count); }
static inline void store_rounded(RowNumber* to, f32x16 value) { store_bf16(to, value); }

// sums[row][v] += pairs(v) * row_pair(row). kHalves: 2, or 1 for the pairs' first numbers alone. later(v): called once,
// to ask for what will take the place of pairs(v).
template <int kHalves, int kRows, int kVectors, class Pairs, class RowPair, class Later>
static inline void add_products(f32x16 (&sums)[kRows][kVectors], Pairs&& pairs, RowPair&& row_pair, Later&& later) {
  i32x16 pair[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; v++) {
    pair[v] = load<i32x16>(pairs(v));
    later(v);
    if constexpr (kHalves == 1) pair[v] &= 0xffff;
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; row++) {
    const i32x16 both = broadcast_bits(row_pair(row));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v++) sums[row][v] = dot_bf16(sums[row][v], pair[v], both);
  }
}
#else
typedef float RowNumber;

static inline void set_row(RowNumber* to, const bf16* from, int count) {
  int i = 0;
  for (; i + 16 <= count; i += 16) store(to + i, load_bf16(from + i));
  for (; i < count; i++) to[i] = to_float(from[i]);
}
static inline void store_rounded(RowNumber* to, f32x16 value) { store(to, rounded_to_bf16(value)); }

// Eight pairs' first or second numbers. The mask stays in memory, and `and` is said outright for its sake: g++ would
// give it a register.
static inline f32x8 widened(const bf16* pairs, int half) {
  alignas(32) static constexpr uint32_t kSecond[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                      0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
  const u32x8 bits = load<u32x8>(pairs);
  if (half == 0) return (f32x8)(bits << 16);
  f32x8 second;
  asm("vandps %2, %1, %0" : "=x"(second) : "x"(bits), "m"(kSecond));
  return second;
}

// As above. Of 16 registers up to 12 are sums, two some pairs' numbers, one a row's. What is done for a row is a statement
// that g++ cannot take apart: with intrinsics it lets sums wander from register to register until some are spilled in
// every round, which costs a quarter of the speed with many rows.
template <int kHalves, int kRows, int kVectors, class Pairs, class RowPair, class Later>
static inline void add_products(f32x16 (&sums)[kRows][kVectors], Pairs&& pairs, RowPair&& row_pair, Later&& later) {
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; half++) {
    asm volatile("" ::: "memory");  // else g++ splits all pairs at once, and wants more registers than there are
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      if (half == 0) later(v);
      const f32x8 low = widened(pairs(v), half), high = widened(pairs(v) + 16, half);
#pragma GCC unroll 6
      for (int row = 0; row < kRows; row++) {
        f32x8 number;
        asm volatile("vbroadcastss %5, %2\n\tvfmadd231ps %3, %2, %0\n\tvfmadd231ps %4, %2, %1"
                     : "+x"(sums[row][v].low), "+x"(sums[row][v].high), "=&x"(number)
                     : "x"(low), "x"(high), "m"(row_pair(row)[half]));
      }
    }
  }
}
#endif

}  // namespace tokenbus
