// Floats as integers in the same order, and tokens in the order of likelihood.
#pragma once
#include "kernels/sampling/block.cuh"

namespace tokenbus {

constexpr int kNoToken = 0x7fffffff;  // beyond all ids
constexpr float kLowest = -3.402823466e38f;

static __device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// Larger for a larger value; 0 and -0 are equal. No number that is finite comes out as 0xffffffff.
static __device__ __forceinline__ uint32_t to_order(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // which turns -0 into 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float from_order(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// A token with what it is compared by. Tokens are before it that have a larger value, or the same and a lower id.
struct Place {
  float value;
  int token;

  __device__ __forceinline__ bool is_after(float other_value, int other_token) const {
    return other_value > value || (other_value == value && other_token < token);
  }
};

// The first place of all threads', for each of them.
static __device__ __forceinline__ Place first_of_block(const Place& place, BlockMemory& memory) {
  const uint64_t mine = static_cast<uint64_t>(to_order(place.value)) << 32 | ~static_cast<uint32_t>(place.token);
  const uint64_t first = largest_of_block(mine, memory);
  return {from_order(static_cast<uint32_t>(first >> 32)), static_cast<int>(~static_cast<uint32_t>(first))};
}

}  // namespace tokenbus
