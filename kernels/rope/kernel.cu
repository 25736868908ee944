// Rotary position embedding, in place: each pair (x[i], x[i + D / 2]) of a head turned in float32, rounded once.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kRopeThreads = 128;

// A block a token. heads: T, `stride` from token to token, num_heads heads of head_dim one after the other (queries,
// then keys); cos_sin: float [positions][head_dim], the cosines of a position's head_dim / 2 angles, then their sines;
// positions: [tokens]. head_dim / 2: a multiple of 8; addresses and stride * sizeof(T): multiples of 16.
template <class T>
__global__ void __launch_bounds__(kRopeThreads)
    rope(T* heads, const float* cos_sin, const int64_t* positions, int num_heads, int head_dim, int64_t stride) {
  constexpr int kStep = kNumbers<T>;
  const int half = head_dim / 2, steps = half / kStep;
  const float* cosines = cos_sin + positions[blockIdx.x] * head_dim;
  T* token = heads + blockIdx.x * stride;
  for (int task = threadIdx.x; task < num_heads * steps; task += kRopeThreads) {
    const int i = task % steps * kStep;
    T* first = token + task / steps * head_dim + i;
    T* second = first + half;
    float x[kStep], y[kStep];
    unpack_16<T>(*reinterpret_cast<const uint4*>(first), x);
    unpack_16<T>(*reinterpret_cast<const uint4*>(second), y);
#pragma unroll
    for (int k = 0; k < kStep; k++) {
      const float c = cosines[i + k], s = cosines[half + i + k], turned = x[k] * c - y[k] * s;
      y[k] = y[k] * c + x[k] * s;
      x[k] = turned;
    }
    *reinterpret_cast<uint4*>(first) = pack_16<T>(x);
    *reinterpret_cast<uint4*>(second) = pack_16<T>(y);
  }
}

}  // namespace tokenbus
