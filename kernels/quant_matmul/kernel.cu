// Products with quantised weights; see the package's own words, and those of each file.
#include "kernels/quant_matmul/few_rows.cuh"
#include "kernels/quant_matmul/many_rows.cuh"

namespace tokenbus {

constexpr int kTakeThreads = 256;

// out[row][i] = x[row][order[i]], 16-bit numbers of any kind: inputs in the order of their groups. out has n of them in a
// row, a multiple of 8; x has width. The grid: rows, ceil(n / 2048).
__global__ void __launch_bounds__(kTakeThreads)
    take_inputs(uint16_t* out, const uint16_t* x, const int32_t* order, int n, int width) {
  const int at = (blockIdx.y * kTakeThreads + threadIdx.x) * 8;
  if (at >= n) return;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  uint16_t taken[8];
#pragma unroll
  for (int i = 0; i < 8; i++) taken[i] = x[row + order[at + i]];
  uint4 bytes;
  memcpy(&bytes, taken, sizeof bytes);
  *reinterpret_cast<uint4*>(out + static_cast<int64_t>(blockIdx.x) * n + at) = bytes;
}

}  // namespace tokenbus
