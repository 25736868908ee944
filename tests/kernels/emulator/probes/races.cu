// Memory that threads share, each kernel with what keeps them apart, or without.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// Each reads what its neighbour wrote.
template <bool kIsRight>
__global__ void neighbours(int* out) {
  __shared__ int numbers[64];
  const int own = threadIdx.x;
  numbers[own] = own;
  if (kIsRight) __syncthreads();
  out[own] = numbers[(own + 1) % 64];
}

// Each overwrites what its neighbour reads, between two barriers that all come to.
template <bool kIsRight>
__global__ void overwritten(int* out) {
  __shared__ int numbers[64];
  const int own = threadIdx.x;
  numbers[own] = own;
  __syncthreads();
  const int found = numbers[(own + 1) % 64];
  if (kIsRight) __syncthreads();
  numbers[own] = -own;
  __syncthreads();
  out[own] = found + numbers[own];
}

// The same within a warp, where a shuffle orders nothing.
template <bool kIsRight>
__global__ void lanes(int* out) {
  __shared__ int numbers[32];
  const int own = threadIdx.x;
  numbers[own] = __shfl_xor_sync(0xffffffffu, own, 1);
  if (kIsRight)
    __syncwarp();
  else
    __shfl_xor_sync(0xffffffffu, own, 1);
  out[own] = numbers[own ^ 2];
}

// Between two __syncwarp, as `overwritten`.
template <bool kIsRight>
__global__ void overwritten_in_a_warp(int* out) {
  __shared__ int numbers[32];
  const int own = threadIdx.x;
  numbers[own] = own;
  __syncwarp();
  const int found = numbers[own ^ 3];
  if (kIsRight) __syncwarp();
  numbers[own] = -own;
  __syncwarp();
  out[own] = found + numbers[own];
}

// What was copied is there for the thread that waited, and after a barrier for the others.
template <bool kIsRight>
__global__ void copied(int* out, const int* from) {
  __shared__ __align__(16) int numbers[64 * 4];
  const int own = threadIdx.x;
  cp_async_16(numbers + own * 4, from + own * 4, true);
  cp_async_commit();
  cp_async_wait<0>();
  if (kIsRight) __syncthreads();
  out[own] = numbers[(own + 1) % 64 * 4];
}

// ldmatrix waits for nobody's stores.
template <bool kIsRight>
__global__ void loaded_as_matrices(int* out) {
  __shared__ __align__(16) uint32_t rows[32][4];
  const int own = threadIdx.x;
  for (int i = 0; i < 4; i++) rows[own][i] = own;
  if (kIsRight) __syncwarp();
  uint32_t fragments[4];
  ldmatrix_4(fragments, rows[own ^ 1]);
  out[own] = fragments[0];
}

// Results of neither barriers nor warps: of two warps, where one may have ended before the other began.
template <bool kIsRight>
__global__ void global(int* out) {
  const int own = threadIdx.x;
  out[kIsRight ? own : own % 32] = own % 32;
}

// Sums by atomics alone.
template <bool kIsRight>
__global__ void added(int* out) {
  const int own = threadIdx.x;
  if (kIsRight)
    atomicAdd(out, own);
  else
    out[0] += own;
}

// Threads that end before the others come to their barriers.
template <bool kIsRight>
__global__ void some_end(int* out) {
  __shared__ int numbers[64];
  const int own = threadIdx.x;
  numbers[own] = own;
  if (own >= 40) return;
  __syncthreads();
  out[own] = numbers[kIsRight ? (own + 1) % 40 : own + 2];
}

}  // namespace tokenbus
