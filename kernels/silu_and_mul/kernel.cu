// out = silu(gate) * up, where each row of gate_up has the gate in its first half; in float32, rounded once.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kSiluThreads = 256;

// Eight numbers a thread; blockIdx.x: the row. out: T [rows][n], gate_up: T [rows][2 n]. n: a multiple of 8; addresses:
// multiples of 16.
template <class T>
__global__ void __launch_bounds__(kSiluThreads) silu_and_mul(T* out, const T* gate_up, int n) {
  constexpr int kStep = kNumbers<T>;
  const int i = (blockIdx.y * kSiluThreads + threadIdx.x) * kStep;
  if (i >= n) return;
  const int64_t row = blockIdx.x;
  float gate[kStep], up[kStep];
  unpack_16<T>(load_16(gate_up + row * 2 * n + i), gate);
  unpack_16<T>(load_16(gate_up + row * 2 * n + n + i), up);
#pragma unroll
  for (int k = 0; k < kStep; k++) gate[k] = gate[k] / (1.0f + __expf(-gate[k])) * up[k];
  *reinterpret_cast<uint4*>(out + row * n + i) = pack_16<T>(gate);
}

}  // namespace tokenbus
