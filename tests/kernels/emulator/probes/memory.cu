// Memory used as it may not be, unless the offset is 0.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

__global__ void reads_bytes(uint8_t* out, const uint8_t* from, int size, int offset) {
  for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = from[i + offset];
}

__global__ void writes_bytes(uint8_t* out, int size, int offset) {
  for (int i = threadIdx.x; i < size; i += blockDim.x) out[i + offset] = 1;
}

__global__ void reads_16_bytes(uint32_t* out, const uint8_t* from, int offset) {
  *out = reinterpret_cast<const uint4*>(from + offset)->x;
}

__global__ void reads_a_variable(uint32_t* out, int offset) {
  __shared__ uint32_t numbers[32];
  numbers[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = numbers[threadIdx.x + offset];
}

__global__ void multiplies(int* out, int offset) { *out = (offset + 1) * 70000 * (offset * 70000 + 1); }

__global__ void shifts(int* out, int offset) { *out = 1 << (offset * 40); }

__global__ void reads_null(int* out, const int* from, int offset) { *out = offset != 0 ? *from : 0; }

}  // namespace tokenbus
