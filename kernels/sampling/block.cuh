// What the threads of a row's block find out together.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kBins = 4 * kSampleThreads;  // of a histogram; a thread looks at four of them
constexpr unsigned kAllLanes = 0xffffffffu;

struct Bin {
  uint32_t index;
  int32_t before;  // entries of lower bins
  int32_t count;
};

// Shared memory of the block, whatever the vocabulary.
struct BlockMemory {
  uint32_t bins[kBins];
  uint64_t of_warps[kSampleWarps];
  Bin found;
  uint32_t num_listed;
};

// join(.. join(value, value) ..) over all threads, for each of them. Values are joined in an order of their own, never
// in that of arrival: sums of floats come out the same each time.
template <class Value, class Join>
static __device__ __forceinline__ Value join_block(Value value, BlockMemory& memory, Join join) {
  static_assert(sizeof(Value) <= sizeof memory.of_warps[0]);
  Value* of_warps = reinterpret_cast<Value*>(memory.of_warps);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = join(value, __shfl_xor_sync(kAllLanes, value, distance));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < kSampleWarps; warp++) value = join(value, of_warps[warp]);
  __syncthreads();  // until all have read what the next call overwrites
  return value;
}

static __device__ __forceinline__ double sum_of_block(double value, BlockMemory& memory) {
  return join_block(value, memory, [](double a, double b) { return a + b; });
}

template <class Value>
static __device__ __forceinline__ Value largest_of_block(Value value, BlockMemory& memory) {
  return join_block(value, memory, [](Value a, Value b) { return a > b ? a : b; });
}

}  // namespace tokenbus
