// Softmax over parts of the keys, put together: parts of a block's warps, and items of a sequence.
#pragma once
#include "kernels/paged_attention/tile.cuh"

namespace tokenbus {

// By all threads of a block, after what its kWarps warps have summed: to out where the block's item is the sequence's
// only one, else to the partial results. sums: [kWarps][kGroup][kHeadDim], stats: [kWarps][kGroup][2], in shared
// memory; out, partial_sums, partial_stats: of the first head of the group, partial ones null for out.
template <class T, int kHeadDim, int kGroup, int kWarps, int kThreads>
static __device__ __forceinline__ void write_merged(T* out, float* partial_sums, float* partial_stats, const float* sums,
                                                    const float* stats, float value_scale) {
  for (int i = threadIdx.x; i < kGroup * kHeadDim; i += kThreads) {
    const int row = i / kHeadDim, column = i % kHeadDim;
    float greatest = minus_infinity();
#pragma unroll
    for (int warp = 0; warp < kWarps; warp++) greatest = fmaxf(greatest, stats[(warp * kGroup + row) * 2]);
    const float base = greatest == minus_infinity() ? 0.0f : greatest;
    float sum = 0.0f, weight = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; warp++) {
      const float rescaling = exp2_fast(stats[(warp * kGroup + row) * 2] - base);
      weight += stats[(warp * kGroup + row) * 2 + 1] * rescaling;
      sum += sums[(warp * kGroup + row) * kHeadDim + column] * rescaling;
    }
    sum *= value_scale;
    if (partial_sums == nullptr) {
      out[i] = from_float<T>(weight > 0.0f ? sum / weight : 0.0f);
    } else {
      partial_sums[i] = sum;
      if (column == 0) {
        partial_stats[row * 2] = greatest;
        partial_stats[row * 2 + 1] = weight;
      }
    }
  }
}

constexpr int kCombineThreads = 128;

// A warp for each sequence and head: grid: heads * sequences / 4. splits: [sequences][2], first slot and number of
// slots, the latter 0 where the sequence has no partial results. Others as in decode_mma.cuh.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kCombineThreads)
    combine_splits(T* out, const float* partial_sums, const float* partial_stats, const int32_t* splits,
                   const int32_t* cu_seqlens_q, int num_heads, int num_sequences) {
  const int index = blockIdx.x * (kCombineThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int sequence = index / num_heads, head = index % num_heads;
  if (sequence >= num_sequences) return;
  const int2 split = reinterpret_cast<const int2*>(splits)[sequence];
  if (split.y == 0) return;
  float greatest = minus_infinity();
  for (int i = lane; i < split.y; i += 32)
    greatest = fmaxf(greatest, partial_stats[(static_cast<int64_t>(split.x + i) * num_heads + head) * 2]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, distance));
  const float base = greatest == minus_infinity() ? 0.0f : greatest;
  constexpr int kColumns = (kHeadDim + 31) / 32;
  float sums[kColumns] = {}, weight = 0.0f;
  for (int i = 0; i < split.y; i++) {
    const int64_t row = static_cast<int64_t>(split.x + i) * num_heads + head;
    const float rescaling = exp2_fast(partial_stats[row * 2] - base);
    weight += partial_stats[row * 2 + 1] * rescaling;
#pragma unroll
    for (int c = 0; c < kColumns; c++)
      if (c * 32 + lane < kHeadDim) sums[c] += partial_sums[row * kHeadDim + c * 32 + lane] * rescaling;
  }
  T* to = out + (static_cast<int64_t>(cu_seqlens_q[sequence]) * num_heads + head) * kHeadDim;
#pragma unroll
  for (int c = 0; c < kColumns; c++)
    if (c * 32 + lane < kHeadDim) to[c * 32 + lane] = from_float<T>(weight > 0.0f ? sums[c] / weight : 0.0f);
}

}  // namespace tokenbus
