// The inputs split over several blocks, where there are too few columns for all of a device. Whichever block comes last
// adds up what all of them have found, in their order: so the same launch gives the same bits each time.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// The grid's second dimension is the splits; a part is one of the others. found: float [parts][splits][kCount][kThreads].
// arrived: uint32 [parts], zero before the launch and after it.
struct Splits {
  float* found;
  uint32_t* arrived;
};

// By all threads of a block, of which the first kThreads have sums. True in the last block of a part: there the sums are
// those of all splits.
template <int kCount, int kThreads>
static __device__ __forceinline__ bool add_splits(const Splits& splits, float* sums) {
  if (gridDim.y == 1) return true;
  __shared__ bool is_last;
  const int64_t part = blockIdx.x + static_cast<int64_t>(gridDim.x) * blockIdx.z;
  constexpr int kSize = kCount * kThreads;
  const bool has_sums = threadIdx.x < kThreads;
  float* of_part = splits.found + part * gridDim.y * kSize + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kCount; i++)
    if (has_sums) of_part[blockIdx.y * kSize + i * kThreads] = sums[i];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(splits.arrived + part, 1u) + 1 == gridDim.y;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
  if (threadIdx.x == 0) splits.arrived[part] = 0;
#pragma unroll
  for (int i = 0; i < kCount; i++) sums[i] = 0.0f;
  for (unsigned split = 0; has_sums && split < gridDim.y; split++) {
    const volatile float* of_split = of_part + split * kSize;
#pragma unroll
    for (int i = 0; i < kCount; i++) sums[i] += of_split[i * kThreads];
  }
  return true;
}

}  // namespace tokenbus
