// Threads that wait for each other, and some that never come.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// The sum of the numbers of all threads below `count`; the others end at once.
__global__ void sum_of_those_left(int* sum, int count) {
  __shared__ int numbers[128];
  const int own = threadIdx.x;
  if (own >= count) return;
  numbers[own] = own;
  __syncthreads();
  if (own != 0) return;
  *sum = 0;
  for (int i = 0; i < count; i++) *sum += numbers[i];
}

// Half of a warp comes to a barrier of the block, the other half to one of the warp.
__global__ void barrier_against_warp(int half) {
  if (static_cast<int>(threadIdx.x) < half)
    __syncthreads();
  else
    __syncwarp();
}

// Some lanes end, where others wait for all.
__global__ void lanes_that_ended(int count) {
  if (static_cast<int>(threadIdx.x) < count) return;
  __syncwarp();
}

__global__ void two_barriers(int half) {
  if (static_cast<int>(threadIdx.x) < half)
    __syncthreads();
  else
    __syncthreads();
}

// One lane votes while the others shuffle.
__global__ void two_collectives(int* out) {
  if (threadIdx.x == 5)
    *out = __ballot_sync(0xffffffffu, 1);
  else
    *out = __shfl_sync(0xffffffffu, 1, 0);
}

// The last lane means all, the others mean those below `count`.
__global__ void two_masks(int* out, int count) {
  const unsigned all = 0xffffffffu, lower = all >> (32 - count);
  if (threadIdx.x == 31)
    *out = __shfl_sync(all, 1, 0);
  else if (static_cast<int>(threadIdx.x) < count)
    *out = __shfl_sync(lower, 1, 0);
}

__global__ void outside_its_mask(int* out, unsigned mask) { *out = __shfl_sync(mask, 1, 0); }

}  // namespace tokenbus
