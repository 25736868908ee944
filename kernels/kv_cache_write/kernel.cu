// New keys and values into the paged cache, each token's at its slot.
//
// The cache may be narrower than what is written (fp8): then a value is stored divided by its head's scale, and read
// times it. Offsets are 64 bits wide: a cache of more than 2^31 numbers is usual.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kWriteThreads = 128;

// A block a token. keys, values: T, `stride` from token to token, num_heads heads of head_dim; caches: Kept, by the
// strides from block to block, token to token, head to head; slots: [tokens], block * block_size + offset, or -1: not
// kept; key_scales, value_scales: float [num_heads], or null: 1. head_dim: a multiple of 8; addresses: of 16.
template <class T, class Kept>
__global__ void __launch_bounds__(kWriteThreads)
    kv_cache_write(Kept* key_cache, Kept* value_cache, const T* keys, const T* values, const int64_t* slots,
                   const float* key_scales, const float* value_scales, int num_heads, int head_dim, int block_size,
                   int64_t stride, int64_t block_stride, int64_t token_stride, int64_t head_stride) {
  constexpr int kStep = kNumbers<T>;
  const int64_t slot = slots[blockIdx.x];
  if (slot < 0) return;
  const int64_t place = slot / block_size * block_stride + slot % block_size * token_stride;
  const int steps = head_dim / kStep;
  for (int task = threadIdx.x; task < 2 * num_heads * steps; task += kWriteThreads) {
    const int head = task / steps % num_heads, i = task % steps * kStep;
    const bool is_key = task < num_heads * steps;
    const T* from = (is_key ? keys : values) + blockIdx.x * stride + head * head_dim + i;
    Kept* to = (is_key ? key_cache : value_cache) + place + head * head_stride + i;
    const float* scales = is_key ? key_scales : value_scales;
    const float inverse = scales != nullptr ? 1.0f / scales[head] : 1.0f;
    float numbers[kStep];
    unpack_16<T>(load_16(from), numbers);
    alignas(16) Kept kept[kStep];
#pragma unroll
    for (int k = 0; k < kStep; k++) kept[k] = from_float<Kept>(numbers[k] * inverse);
    if constexpr (sizeof kept == 16)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(kept);
    else
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(kept);
  }
}

}  // namespace tokenbus
