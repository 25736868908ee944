// Weights as a lane of a warp holds them: from their stored bits to fragments of mma.m16n8k16.
//
// A chunk is 32 columns by 32 inputs, for a warp; four tiles of 8 columns. Lane l has column 8 tile + l / 4 of each tile
// and inputs 8 (l % 4) to 8 (l % 4) + 7: four pairs. mma's step s takes pairs 2 s and 2 s + 1. Which input is which number
// k of the fragment does not matter, as long as both factors agree: so a lane's inputs are neighbours, and 16 bytes.
// See layout.py for how the chunks lie in memory.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kChunk = 32;       // columns, and inputs
constexpr int kTiles = 4;        // of 8 columns
constexpr int kPairs = 4;        // of inputs, for a lane and a column
constexpr int kScaleBytes = 64;  // of a group and a chunk's columns
constexpr int kZeroWords = 8;    // of 16 bits, of a group and a chunk's columns

// How two 16-bit numbers are written whose last bit is 1: 128 in bfloat16, 1024 in float16. A code of 4 bits in their
// lowest bits adds itself.
template <class T>
constexpr uint32_t kTwoWhole = 0x43004300u;
template <>
constexpr uint32_t kTwoWhole<__half> = 0x64006400u;

template <class T>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<__half> = true;

template <class T>
struct TwoOf;
template <>
struct TwoOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};
template <>
struct TwoOf<__half> {
  using Type = __half2;
};

template <class T>
static __device__ __forceinline__ typename TwoOf<T>::Type two_of(uint32_t bits) {
  typename TwoOf<T>::Type two;
  memcpy(&two, &bits, sizeof two);
  return two;
}

template <class Two>
static __device__ __forceinline__ uint32_t bits_of(const Two& two) {
  uint32_t bits;
  memcpy(&bits, &two, sizeof bits);
  return bits;
}

template <class T>
static __device__ __forceinline__ uint32_t subtract_two(uint32_t first, uint32_t second) {
  return bits_of(__hsub2(two_of<T>(first), two_of<T>(second)));
}

template <class T>
static __device__ __forceinline__ uint32_t multiply_two(uint32_t first, uint32_t second) {
  return bits_of(__hmul2(two_of<T>(first), two_of<T>(second)));
}

// 4 bits, a zero and a scale for each group. A column's word: pair p in bits 4 p and 16 + 4 p.
struct Int4 {
  static constexpr int kWords = 4;  // of a lane and a chunk
  static constexpr bool kHasGroups = true;

  // zeros: of the lane's columns, 4 bits a tile.
  template <class T>
  static __device__ __forceinline__ void unpack(uint32_t (&pairs)[kPairs], const uint32_t (&words)[kWords], int tile,
                                                uint32_t zeros) {
    const uint32_t zero = kTwoWhole<T> | (zeros >> 4 * tile & 15u) * 0x00010001u;
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++)
      pairs[pair] = subtract_two<T>((words[tile] >> 4 * pair & 0x000f000fu) | kTwoWhole<T>, zero);
  }
};

// int8 or fp8 with a scale a column. A column's two words: its eight inputs in order.
struct Int8 {
  static constexpr int kWords = 8;
  static constexpr bool kHasGroups = false;

  template <class T>
  static __device__ __forceinline__ void unpack(uint32_t (&pairs)[kPairs], const uint32_t (&words)[kWords], int tile,
                                                uint32_t) {
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++) {
      const uint32_t offset = words[2 * tile + pair / 2] ^ 0x80808080u;  // by 128, so that none is negative
      const uint32_t both = offset >> 16 * (pair % 2);
      pairs[pair] = less_128<T>(both & 0xffu, both >> 8 & 0xffu);
    }
  }

 private:
  // As the last bits of 1024, or of 2^23, bytes are numbers without a conversion, of which there are few a clock.
  template <class T>
  static __device__ __forceinline__ uint32_t less_128(uint32_t first, uint32_t second) {
    if constexpr (kIsHalf<T>) return subtract_two<T>(first | second << 16 | kTwoWhole<T>, 0x64806480u);
    constexpr float kOffset = 8388608.0f + 128.0f;
    return pack_two<T>(__uint_as_float(0x4b000000u | first) - kOffset, __uint_as_float(0x4b000000u | second) - kOffset);
  }
};

struct Fp8 {
  static constexpr int kWords = 8;
  static constexpr bool kHasGroups = false;

  // Exponent and fraction of e4m3 fit into those of either type, whose exponents are 8 or 120 larger for the same number.
  template <class T>
  static __device__ __forceinline__ void unpack(uint32_t (&pairs)[kPairs], const uint32_t (&words)[kWords], int tile,
                                                uint32_t) {
#pragma unroll
    for (int pair = 0; pair < kPairs; pair++) {
      const uint32_t both = words[2 * tile + pair / 2] >> 16 * (pair % 2);
      const uint32_t high = (both & 0xffu) << 8 | (both & 0xff00u) << 16;  // each in the upper byte of its half
      const uint32_t value = (high & 0x80008000u) | (high & 0x7f007f00u) >> (kIsHalf<T> ? 1 : 4);
      pairs[pair] = multiply_two<T>(value, kIsHalf<T> ? 0x5c005c00u : 0x7b807b80u);  // 2^8, 2^120
    }
  }
};

}  // namespace tokenbus
