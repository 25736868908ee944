// Atomics, bits and fast mathematics. One thread runs at a time, so that an atomic is a plain operation.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/kernels/emulator/cuda.h"

namespace emulator {
// What was there before; update tells what is there afterwards.
template <class Value, class Update>
Value atomically(Value* at, Update update) {
  Unwatched scope;
  const Value old = *at;
  *at = update(old);
  return old;
}
}  // namespace emulator

template <class Value>
Value atomicAdd(Value* at, Value value) {
  return emulator::atomically(at, [=](Value old) { return old + value; });
}

template <class Value>
Value atomicMax(Value* at, Value value) {
  return emulator::atomically(at, [=](Value old) { return std::max(old, value); });
}

template <class Value>
Value atomicMin(Value* at, Value value) {
  return emulator::atomically(at, [=](Value old) { return std::min(old, value); });
}

template <class Value>
Value atomicOr(Value* at, Value value) {
  return emulator::atomically(at, [=](Value old) { return old | value; });
}

template <class Value>
Value atomicAnd(Value* at, Value value) {
  return emulator::atomically(at, [=](Value old) { return old & value; });
}

template <class Value>
Value atomicExch(Value* at, Value value) {
  return emulator::atomically(at, [=](Value) { return value; });
}

template <class Value>
Value atomicCAS(Value* at, Value expected, Value value) {
  return emulator::atomically(at, [=](Value old) { return old == expected ? value : old; });
}

template <class To, class From>
static inline To emulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

static inline float __int_as_float(int bits) { return emulator_bits<float>(bits); }
static inline int __float_as_int(float value) { return emulator_bits<int>(value); }
static inline float __uint_as_float(unsigned bits) { return emulator_bits<float>(bits); }
static inline unsigned __float_as_uint(float value) { return emulator_bits<unsigned>(value); }

template <class Value>
Value __ldg(const Value* from) {
  return *from;
}

// The C library has functions of these names.
#define __expf(x) std::exp(static_cast<float>(x))
#define __logf(x) std::log(static_cast<float>(x))

// As a device's: by a divisor beyond 2^126 the quotient is 0, or no number for an infinite dividend.
static inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f && !std::isinf(b) ? a * 0.0f : a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// g++ fuses a product and a sum as nvcc does; these are rounded one by one.
static inline float emulator_rounded(float value) {
  asm("" : "+x"(value));
  return value;
}
static inline float __fadd_rn(float a, float b) { return emulator_rounded(a + b); }
static inline float __fmul_rn(float a, float b) { return emulator_rounded(a * b); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits != 0 ? __builtin_clz(bits) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }

using std::max;
using std::min;
