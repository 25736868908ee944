// What lanes of a warp do together.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

enum Shuffle { kIndexed, kXor, kDown, kUp };

// out, values, operands: [32]. operands: a lane, bits, or a distance; each lane has its own.
template <class T, int kShuffle>
__global__ void shuffled(T* out, const T* values, const int* operands, int width) {
  const int lane = threadIdx.x, operand = operands[lane];
  const T value = values[lane];
  if constexpr (kShuffle == kIndexed) out[lane] = __shfl_sync(0xffffffffu, value, operand, width);
  if constexpr (kShuffle == kXor) out[lane] = __shfl_xor_sync(0xffffffffu, value, operand, width);
  if constexpr (kShuffle == kDown) out[lane] = __shfl_down_sync(0xffffffffu, value, operand, width);
  if constexpr (kShuffle == kUp) out[lane] = __shfl_up_sync(0xffffffffu, value, operand, width);
}

// Lanes of the mask vote; the others go on without. votes: [32][3]; predicates: [32].
__global__ void votes(int* votes, const int* predicates, unsigned mask) {
  const int lane = threadIdx.x;
  if ((mask >> lane & 1) == 0) return;
  votes[lane * 3] = __ballot_sync(mask, predicates[lane]);
  votes[lane * 3 + 1] = __any_sync(mask, predicates[lane]);
  votes[lane * 3 + 2] = __all_sync(mask, predicates[lane]);
}

// Both halves of a warp, and several warps, add up among themselves. sums: [threads].
__global__ void sums_of_halves(int* sums) {
  const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = threadIdx.x;
  for (int bits = 8; bits > 0; bits /= 2) sum += __shfl_xor_sync(mask, sum, bits);
  sums[threadIdx.x] = sum;
}

// A lane reads from one that its mask leaves out.
__global__ void from_outside(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

}  // namespace tokenbus
