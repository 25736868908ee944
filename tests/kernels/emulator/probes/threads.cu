// Who runs, and when.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

static __device__ int thread_of_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static __device__ int block_of_grid() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

// seen: [threads of the grid][12].
__global__ void built_ins(int* seen) {
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  int* own = seen + (block_of_grid() * threads + thread_of_block()) * 12;
  own[0] = threadIdx.x, own[1] = threadIdx.y, own[2] = threadIdx.z;
  own[3] = blockIdx.x, own[4] = blockIdx.y, own[5] = blockIdx.z;
  own[6] = blockDim.x, own[7] = blockDim.y, own[8] = blockDim.z;
  own[9] = gridDim.x, own[10] = gridDim.y, own[11] = gridDim.z;
}

// The order in which threads begin, then in which they leave a barrier: turns: [2][threads]; counters: [2], zeros.
__global__ void turns_of_threads(int* turns, int* counters) {
  turns[atomicAdd(&counters[0], 1)] = threadIdx.x;
  __syncthreads();
  turns[blockDim.x + atomicAdd(&counters[1], 1)] = threadIdx.x;
}

// The order in which whole warps come to a shuffle and leave it: turns: [2 threads]; counter: zero.
__global__ void turns_around_a_shuffle(int* turns, int* counter) {
  turns[atomicAdd(counter, 1)] = threadIdx.x;
  __shfl_xor_sync(0xffffffffu, 0, 1);
  turns[atomicAdd(counter, 1)] = threadIdx.x;
}

// The order in which blocks run. turns: [blocks]; counter: zero.
__global__ void turns_of_blocks(int* turns, int* counter) { turns[atomicAdd(counter, 1)] = block_of_grid(); }

// What adds up to the same in whatever order: each thread's number by all atomics, each old value kept.
__global__ void atomics(int* sum, float* float_sum, unsigned* bits, int* most, int* least, int* last, int* maximum_by_cas,
                        int* olds) {
  const int own = threadIdx.x;
  olds[own] = atomicAdd(sum, 1);
  atomicAdd(float_sum, 0.5f);
  atomicOr(bits, 1u << own);
  atomicMax(most, own);
  atomicMin(least, -own);
  atomicExch(last, own);
  int old = *maximum_by_cas;
  while (old < own) {
    const int found = atomicCAS(maximum_by_cas, old, own);
    if (found == old) break;
    old = found;
  }
}

}  // namespace tokenbus
