// The token of a rank, without sorting: histograms over the digits of what tokens are ordered by, the highest digit
// first.
//
// Three passes over the row find a value exactly; all but the first count few tokens. Counts are integers, so the order
// of threads does not matter.
#pragma once
#include "kernels/sampling/row.cuh"

namespace tokenbus {

constexpr int kDigitBits = 11;
static_assert(1 << kDigitBits == kBins);
constexpr uint32_t kNoKey = 0xffffffffu;    // of a token that does not count
constexpr uint32_t kLastKey = 0x7f7fffffu;  // the bits of the largest float

// How far a value lies below the largest one, in bits: the less, the likelier. They are those of a float that is not
// negative, so their order is that of the distances.
static __device__ __forceinline__ uint32_t key_of_distance(float distance) {
  return distance < infinity() ? __float_as_uint(distance) : kNoKey;
}

// The bin with the entry of a rank, 1 <= rank, for all threads; its count is 0 if there are fewer entries.
static __device__ __forceinline__ Bin find_bin(int rank, BlockMemory& memory) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = threadIdx.x * 4;
  int counts[4], sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) sum += counts[i] = static_cast<int>(memory.bins[begin + i]);
  int up_to = sum;  // with this thread's bins
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  int* of_warps = reinterpret_cast<int*>(memory.of_warps);
  if (lane == 31) of_warps[warp] = up_to;
  if (threadIdx.x == 0) memory.found = {0, 0, 0};
  __syncthreads();
  for (int other = 0; other < warp; other++) up_to += of_warps[other];
  int before = up_to - sum;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (before < rank && rank <= before + counts[i])
      memory.found = {static_cast<uint32_t>(begin + i), before, counts[i]};
    before += counts[i];
  }
  __syncthreads();
  const Bin found = memory.found;
  __syncthreads();  // until all have read it
  return found;
}

// bin_of(token, value) of the modified row: a bin, or kNoKey.
template <class T, class BinOf>
static __device__ __forceinline__ Bin bin_of_rank(const Row<T>& row, int rank, BlockMemory& memory, BinOf bin_of) {
  for (int bin = threadIdx.x; bin < kBins; bin += kSampleThreads) memory.bins[bin] = 0;
  __syncthreads();
  for_each_chunk<1>(row, [&](int first, float (&values)[kChunk]) {
    row.modify(first, values);
#pragma unroll
    for (int k = 0; k < kChunk; k++) {
      const uint32_t bin = bin_of(first + k, values[k]);
      if (bin != kNoKey) atomicAdd(&memory.bins[bin], 1u);
    }
  });
  __syncthreads();
  return find_bin(rank, memory);
}

// Where the tokens up to a rank end: those with a lower key, and those with this key up to a token.
struct Cut {
  uint32_t key;
  int token;
};

// The cut after `rank` tokens, 1 <= rank; kLastKey if there are fewer. key_of(value): below 2^31, or kNoKey. If
// splits_equals the lower ids among equals are taken, else all of them.
template <class T, class KeyOf>
static __device__ __forceinline__ Cut cut_after(const Row<T>& row, int rank, bool splits_equals, BlockMemory& memory,
                                                KeyOf key_of) {
  constexpr uint32_t kDigit = kBins - 1;
  uint32_t key = 0;
  Bin bin{};
#pragma unroll 1
  for (int shift = 20; shift >= 0; shift -= 10) {  // digits of 11, 10 and 10 bits: the 31 of a key
    const int end = shift == 20 ? 31 : shift + 10;
    bin = bin_of_rank(row, rank, memory, [&](int, float value) {
      const uint32_t other = key_of(value);
      return (other ^ key) >> end != 0 ? kNoKey : (other & ((1u << end) - 1)) >> shift;
    });
    if (bin.count == 0) return {kLastKey, kNoToken};
    key |= bin.index << shift;
    rank -= bin.before;
  }
  if (!splits_equals || rank == bin.count) return {key, kNoToken};
  uint32_t token = 0;
#pragma unroll 1
  for (int shift = kDigitBits; shift >= 0; shift -= kDigitBits) {  // of the ids of those that have this key
    bin = bin_of_rank(row, rank, memory, [&](int other, float value) {
      const bool counts = key_of(value) == key && (other ^ token) >> shift >> kDigitBits == 0;
      return counts ? other >> shift & kDigit : kNoKey;
    });
    token |= bin.index << shift;
    rank -= bin.before;
  }
  return {key, static_cast<int>(token)};
}

}  // namespace tokenbus
