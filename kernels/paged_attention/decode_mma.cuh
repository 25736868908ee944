// Attention of one query a sequence on the tensor cores.
//
// A block takes an item: some tiles of one sequence and one head of keys and values, for all heads of its group. Its
// four warps take every fourth tile each, through a ring of their own that cp.async fills two tiles ahead: no barrier
// in the loop. At the end the warps are merged, and the items of a sequence by combine_splits (merge.cuh).
#pragma once
#include "kernels/paged_attention/cache.cuh"
#include "kernels/paged_attention/merge.cuh"

namespace tokenbus {

constexpr int kDecodeWarps = 4, kDecodeThreads = 32 * kDecodeWarps;
constexpr int kDecodeStages = 3;

// Numbers of T in dynamic shared memory before the rings, and in bytes all of it.
template <class T, int kHeadDim>
constexpr int kQueryNumbers = kTileRows * kRowLength<kHeadDim>;

template <class T, class Kept, int kHeadDim>
struct WarpRing {
  static constexpr bool kWidens = sizeof(Kept) != sizeof(T);
  static constexpr int kTile = kTileTokens * kKeptRowLength<Kept, kHeadDim>, kWide = kTileTokens * kRowLength<kHeadDim>;
  static constexpr int kBytes =
      kDecodeStages * 2 * kTile * static_cast<int>(sizeof(Kept)) + (kWidens ? kWide * static_cast<int>(sizeof(T)) : 0);

  Kept* tiles;  // [stages][keys, values]
  T* wide;      // one tile, where the cache is narrower than T

  __device__ __forceinline__ explicit WarpRing(unsigned char* memory)
      : tiles(reinterpret_cast<Kept*>(memory)),
        wide(reinterpret_cast<T*>(memory + kDecodeStages * 2 * kTile * sizeof(Kept))) {}

  __device__ __forceinline__ void begin(int stage, const CachedHead<Kept>& keys, const CachedHead<Kept>& values,
                                        int first, int end, int lane) {
    if (first < end) {
      begin_tile<Kept, kHeadDim, 32>(tiles + stage * 2 * kTile, keys, first, end, lane);
      begin_tile<Kept, kHeadDim, 32>(tiles + (stage * 2 + 1) * kTile, values, first, end, lane);
    }
    cp_async_commit();
  }

  // half: 0 for the keys, 1 for the values. As the tensor cores read it.
  __device__ __forceinline__ const T* tile(int stage, int half, int lane) {
    const Kept* kept = tiles + (stage * 2 + half) * kTile;
    if constexpr (kWidens) {
      __syncwarp();  // the tile before is used
      widen_tile<T, Kept, kHeadDim, 32>(wide, kept, lane);
      __syncwarp();
      return wide;
    } else {
      return kept;
    }
  }
};

// Grid: items, key/value heads. kGroup: query heads of a key/value head, at most 16.
//   out                T [tokens][heads][head_dim]
//   partial_sums       float [slots][heads][head_dim]; partial_stats: float [slots][heads][2], greatest score and
//   weight query              T, query_stride from token to token, heads of head_dim beside each other
//   caches             Kept, by strides; key_scales, value_scales: float [kv heads], or null: 1
//   items              [][4]: sequence (-1: none), first and end position, slot (-1: the sequence's only item)
//   block_tables       [sequences][table_stride]; cu_seqlens_q: [sequences + 1]; context_lens: [sequences]
//   window             tokens that a query sees, itself included; 0: all
template <class T, class Kept, int kHeadDim, int kGroup>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    decode_mma(T* out, float* partial_sums, float* partial_stats, const T* query, const Kept* key_cache,
               const Kept* value_cache, const float* key_scales, const float* value_scales, const int32_t* items,
               const int32_t* block_tables, const int32_t* cu_seqlens_q, const int32_t* context_lens, int table_stride,
               int block_shift, int64_t query_stride, int64_t block_stride, int64_t token_stride, int64_t head_stride,
               float scale, float soft_cap, int window) {
  static_assert(kGroup >= 1 && kGroup <= kTileRows);
  const int4 item = reinterpret_cast<const int4*>(items)[blockIdx.x];
  if (item.x < 0) return;
  const int kv_head = blockIdx.y, num_heads = gridDim.y * kGroup, first_head = kv_head * kGroup;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t token = cu_seqlens_q[item.x];
  const int context_len = context_lens[item.x], oldest = window > 0 ? max(0, context_len - window) : 0;

  SHARED_MEMORY(unsigned char, memory);
  using Ring = WarpRing<T, Kept, kHeadDim>;
  T* queries = reinterpret_cast<T*>(memory);
  Ring ring(memory + kQueryNumbers<T, kHeadDim> * sizeof(T) + warp * Ring::kBytes);

  constexpr int kPieces = kHeadDim / 8;
  const T* own_query = query + token * query_stride + first_head * kHeadDim;
  for (int i = threadIdx.x; i < kTileRows * kPieces; i += kDecodeThreads) {
    const int row = i / kPieces, column = i % kPieces * 8;
    const bool is_there = row < kGroup;
    cp_async_16(queries + row * kRowLength<kHeadDim> + column, is_there ? own_query + row * kHeadDim + column : query,
                is_there);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  RowTile<T, kHeadDim, 1> rows;
  rows.begin(queries, lane);
  const int32_t* table = block_tables + static_cast<int64_t>(item.x) * table_stride;
  const CachedHead<Kept> keys{key_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const CachedHead<Kept> values{value_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const ScoreShape shape{scale * (key_scales != nullptr ? key_scales[kv_head] : 1.0f) * kLog2E, soft_cap};
  const Visible visible{{oldest, oldest}, {item.z, item.z}};

  constexpr int kStride = kDecodeWarps * kTileTokens;
  const int first = item.y + warp * kTileTokens;
#pragma unroll
  for (int stage = 0; stage < kDecodeStages - 1; stage++)
    ring.begin(stage, keys, values, first + stage * kStride, item.z, lane);
  int stage = 0;
  for (int at = first; at < item.z; at += kStride) {
    cp_async_wait<kDecodeStages - 2>();
    __syncwarp();
    const int next = stage == 0 ? kDecodeStages - 1 : stage - 1;
    ring.begin(next, keys, values, at + (kDecodeStages - 1) * kStride, item.z, lane);
    typename RowTile<T, kHeadDim, 1>::Scores scores;
    rows.multiply_keys(scores, ring.tile(stage, 0, lane), lane);
    rows.weigh(scores, at, visible, shape, at < oldest || at + kTileTokens > item.z, lane);
    rows.add_values(scores, ring.tile(stage, 1, lane), lane);
    stage = stage + 1 == kDecodeStages ? 0 : stage + 1;
  }
  rows.finish();
  cp_async_wait<0>();
  __syncthreads();  // all rings are used: their memory is the merge's

  float* sums = reinterpret_cast<float*>(memory);              // [warps][kGroup][kHeadDim]
  float* stats = sums + kDecodeWarps * kGroup * kHeadDim;      // [warps][kGroup][2]
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane / 4 + half * 8;
    if (row >= kGroup) continue;
    float* to = sums + (warp * kGroup + row) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; i++) {
      to[i * 8] = rows.sums[i][2 * half];
      to[i * 8 + 1] = rows.sums[i][2 * half + 1];
    }
    if (lane % 4 == 0) {
      stats[(warp * kGroup + row) * 2] = rows.greatest[half];
      stats[(warp * kGroup + row) * 2 + 1] = rows.weights[half];
    }
  }
  __syncthreads();
  const float value_scale = value_scales != nullptr ? value_scales[kv_head] : 1.0f;
  write_merged<T, kHeadDim, kGroup, kDecodeWarps, kDecodeThreads>(
      out + (token * num_heads + first_head) * kHeadDim,
      item.w < 0 ? nullptr : partial_sums + (static_cast<int64_t>(item.w) * num_heads + first_head) * kHeadDim,
      item.w < 0 ? nullptr : partial_stats + (static_cast<int64_t>(item.w) * num_heads + first_head) * 2, sums, stats,
      value_scale);
}

}  // namespace tokenbus
