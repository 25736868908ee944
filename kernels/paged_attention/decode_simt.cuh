// Attention of one query a sequence without tensor cores: for groups of one or two heads, of which a 16-row tile would
// be mostly empty, and to check the other kernel by.
//
// Items, results and the merge are those of decode_mma.cuh. Each row of the cache is read by as many lanes as it has
// pieces of 16 bytes; a warp takes several rows at once.
#pragma once
#include "kernels/paged_attention/decode_mma.cuh"

namespace tokenbus {

constexpr int power_of_two_from(int count) {
  int power = 1;
  while (power < count) power *= 2;
  return power;
}

// What one lane has of each head's softmax: its piece's sums.
template <int kGroup, int kPiece>
struct LaneSums {
  float sums[kGroup][kPiece], greatest[kGroup], weights[kGroup];

  __device__ __forceinline__ LaneSums() {
#pragma unroll
    for (int head = 0; head < kGroup; head++) {
      greatest[head] = minus_infinity();
      weights[head] = 0.0f;
#pragma unroll
      for (int i = 0; i < kPiece; i++) sums[head][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void add(int head, float score, const float (&values)[kPiece]) {
    const float most = fmaxf(greatest[head], score), base = most == minus_infinity() ? 0.0f : most;
    const float rescaling = exp2_fast(greatest[head] - base), weight = exp2_fast(score - base);
    greatest[head] = most;
    weights[head] = weights[head] * rescaling + weight;
#pragma unroll
    for (int i = 0; i < kPiece; i++) sums[head][i] = sums[head][i] * rescaling + weight * values[i];
  }

  // Takes in what the lane `distance` away has.
  __device__ __forceinline__ void merge(int distance) {
#pragma unroll
    for (int head = 0; head < kGroup; head++) {
      const float other = __shfl_xor_sync(0xffffffffu, greatest[head], distance);
      const float most = fmaxf(greatest[head], other), base = most == minus_infinity() ? 0.0f : most;
      const float own_rescaling = exp2_fast(greatest[head] - base), rescaling = exp2_fast(other - base);
      greatest[head] = most;
      weights[head] =
          weights[head] * own_rescaling + __shfl_xor_sync(0xffffffffu, weights[head], distance) * rescaling;
#pragma unroll
      for (int i = 0; i < kPiece; i++)
        sums[head][i] = sums[head][i] * own_rescaling + __shfl_xor_sync(0xffffffffu, sums[head][i], distance) * rescaling;
    }
  }
};

// Parameters as those of decode_mma.
template <class T, class Kept, int kHeadDim, int kGroup>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_simt(T* out, float* partial_sums, float* partial_stats, const T* query, const Kept* key_cache,
                const Kept* value_cache, const float* key_scales, const float* value_scales, const int32_t* items,
                const int32_t* block_tables, const int32_t* cu_seqlens_q, const int32_t* context_lens, int table_stride,
                int block_shift, int64_t query_stride, int64_t block_stride, int64_t token_stride, int64_t head_stride,
                float scale, float soft_cap, int window) {
  constexpr int kPiece = kNumbers<Kept>, kPieces = kHeadDim / kPiece, kLanes = power_of_two_from(kPieces);
  constexpr int kRows = 32 / kLanes;
  const int4 item = reinterpret_cast<const int4*>(items)[blockIdx.x];
  if (item.x < 0) return;
  const int kv_head = blockIdx.y, num_heads = gridDim.y * kGroup, first_head = kv_head * kGroup;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / kLanes, piece = lane % kLanes;
  const bool has_piece = piece < kPieces;
  const int64_t token = cu_seqlens_q[item.x];
  const int context_len = context_lens[item.x], oldest = window > 0 ? max(0, context_len - window) : 0;

  float queries[kGroup][kPiece];
#pragma unroll
  for (int head = 0; head < kGroup; head++)
#pragma unroll
    for (int i = 0; i < kPiece; i++)
      queries[head][i] =
          has_piece ? to_float<T>(query[token * query_stride + (first_head + head) * kHeadDim + piece * kPiece + i])
                    : 0.0f;
  const int32_t* table = block_tables + static_cast<int64_t>(item.x) * table_stride;
  const CachedHead<Kept> keys{key_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const CachedHead<Kept> values{value_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const ScoreShape shape{scale * (key_scales != nullptr ? key_scales[kv_head] : 1.0f) * kLog2E, soft_cap};

  LaneSums<kGroup, kPiece> of_lane;
  for (int at = item.y + warp * kRows; at < item.z; at += kDecodeWarps * kRows) {  // the same for all lanes of a warp
    const int position = at + row;
    const bool is_there = position < item.z && position >= oldest;
    float key[kPiece] = {}, value[kPiece] = {};
    if (is_there && has_piece) {
      unpack_16<Kept>(load_16(keys.token(position) + piece * kPiece), key);
      unpack_16<Kept>(load_16(values.token(position) + piece * kPiece), value);
    }
#pragma unroll
    for (int head = 0; head < kGroup; head++) {
      float product = 0.0f;
#pragma unroll
      for (int i = 0; i < kPiece; i++) product += queries[head][i] * key[i];
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        product += __shfl_xor_sync(0xffffffffu, product, distance);
      of_lane.add(head, is_there ? shape.of(product) : minus_infinity(), value);
    }
  }
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) of_lane.merge(distance);

  __shared__ float sums[kDecodeWarps * kGroup * kHeadDim], stats[kDecodeWarps * kGroup * 2];
  if (row == 0) {
#pragma unroll
    for (int head = 0; head < kGroup; head++) {
      if (has_piece)
#pragma unroll
        for (int i = 0; i < kPiece; i++)
          sums[(warp * kGroup + head) * kHeadDim + piece * kPiece + i] = of_lane.sums[head][i];
      if (piece == 0) {
        stats[(warp * kGroup + head) * 2] = of_lane.greatest[head];
        stats[(warp * kGroup + head) * 2 + 1] = of_lane.weights[head];
      }
    }
  }
  __syncthreads();
  const int64_t partial = static_cast<int64_t>(item.w) * num_heads + first_head;
  write_merged<T, kHeadDim, kGroup, kDecodeWarps, kDecodeThreads>(
      out + (token * num_heads + first_head) * kHeadDim, item.w < 0 ? nullptr : partial_sums + partial * kHeadDim,
      item.w < 0 ? nullptr : partial_stats + partial * 2, sums, stats,
      value_scales != nullptr ? value_scales[kv_head] : 1.0f);
}

}  // namespace tokenbus
