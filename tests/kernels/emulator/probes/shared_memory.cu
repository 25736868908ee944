// Shared memory, as a block finds it and past its end.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// seen: [blocks][2][bytes]: a variable, then dynamic memory; both are full of 0x11 afterwards.
__global__ void as_found(uint8_t* seen, int bytes) {
  __shared__ uint8_t variable[64];
  SHARED_MEMORY(uint8_t, dynamic);
  uint8_t* own = seen + blockIdx.x * 2 * bytes;
  const int i = threadIdx.x;
  own[i] = variable[i], own[bytes + i] = dynamic[i];
  variable[i] = dynamic[i] = 0x11;
}

// Writes a byte of dynamic memory.
__global__ void write_at(int place) {
  SHARED_MEMORY(uint8_t, dynamic);
  dynamic[place] = 1;
}

// sums: of blocks, by variables of two functions' own.
static __device__ int left_by_others() {
  __shared__ int numbers[32];
  numbers[threadIdx.x] = threadIdx.x;
  __syncthreads();
  return numbers[31 - threadIdx.x];
}

static __device__ int left_by_others_again() {
  __shared__ int numbers[32];
  numbers[threadIdx.x] = threadIdx.x * 100;
  __syncthreads();
  return numbers[31 - threadIdx.x];
}

__global__ void two_variables(int* sums) {
  const int first = left_by_others();
  sums[threadIdx.x] = first + left_by_others_again();
}

}  // namespace tokenbus
