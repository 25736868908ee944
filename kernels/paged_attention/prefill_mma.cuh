// Attention of several queries a sequence on the tensor cores, in the order of FlashAttention-2: a block has 64 rows of
// queries and lets tiles of keys and values pass by.
//
// A row is a query of one head; the heads of a group lie beside each other, so that a tile serves all of them. While
// keys are multiplied, values arrive, and the other way round.
#pragma once
#include "kernels/paged_attention/cache.cuh"

namespace tokenbus {

constexpr int kPrefillWarps = 4, kPrefillThreads = 32 * kPrefillWarps;
constexpr int kPrefillRows = kPrefillWarps * kTileRows;

// Dynamic shared memory: queries, then tiles of keys and of values as they are kept, then, where the cache is narrower
// than T, one more as T, which keys and values take in turn.
template <class T, class Kept, int kHeadDim, int kColumns>
struct PrefillMemory {
  static constexpr bool kWidens = sizeof(Kept) != sizeof(T);
  static constexpr int kTile = kColumns * kKeptRowLength<Kept, kHeadDim>;

  T* queries;
  Kept *keys, *values;
  T* wide;

  __device__ __forceinline__ explicit PrefillMemory(unsigned char* memory)
      : queries(reinterpret_cast<T*>(memory)),
        keys(reinterpret_cast<Kept*>(queries + kPrefillRows * kRowLength<kHeadDim>)),
        values(keys + kTile),
        wide(reinterpret_cast<T*>(values + kTile)) {}

  // A tile as the tensor cores read it. All threads come here at the same time, and nobody reads the one before any
  // more.
  __device__ __forceinline__ const T* as_multiplied(const Kept* kept) {
    if constexpr (kWidens) {
#pragma unroll
      for (int tile = 0; tile < kColumns / kTileTokens; tile++)
        widen_tile<T, Kept, kHeadDim, kPrefillThreads>(
            wide + tile * kTileTokens * kRowLength<kHeadDim>,
            kept + tile * kTileTokens * kKeptRowLength<Kept, kHeadDim>, threadIdx.x);
      __syncthreads();
      return wide;
    } else {
      return kept;
    }
  }
};

// kColumns tokens from `first` on; of those from `end` on, zeros.
template <class Kept, int kHeadDim, int kColumns>
static __device__ __forceinline__ void begin_tiles(Kept* shared, const CachedHead<Kept>& head, int first, int end) {
#pragma unroll
  for (int tile = 0; tile < kColumns / kTileTokens; tile++) {
    const int at = first + tile * kTileTokens;
    begin_tile<Kept, kHeadDim, kPrefillThreads>(shared + tile * kTileTokens * kKeptRowLength<Kept, kHeadDim>, head,
                                                at < end ? at : first, at < end ? end : first, threadIdx.x);
  }
  cp_async_commit();
}

// Grid: items, key/value heads. items: [][2], sequence (-1: none) and first row of 64; row r of a sequence is head
// r % kGroup of the group for its query r / kGroup. Others as in decode_mma.cuh.
template <class T, class Kept, int kHeadDim, int kGroup, int kColumns>
__global__ void __launch_bounds__(kPrefillThreads, 2)
    prefill_mma(T* out, const T* query, const Kept* key_cache, const Kept* value_cache, const float* key_scales,
                const float* value_scales, const int32_t* items, const int32_t* block_tables, const int32_t* cu_seqlens_q,
                const int32_t* context_lens, int table_stride, int block_shift, int64_t query_stride,
                int64_t block_stride, int64_t token_stride, int64_t head_stride, float scale, float soft_cap,
                int window) {
  using Memory = PrefillMemory<T, Kept, kHeadDim, kColumns>;
  constexpr int kTiles = kColumns / kTileTokens;
  const int2 item = reinterpret_cast<const int2*>(items)[blockIdx.x];
  if (item.x < 0) return;
  const int kv_head = blockIdx.y, num_heads = gridDim.y * kGroup, first_head = kv_head * kGroup;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_token = cu_seqlens_q[item.x], num_queries = cu_seqlens_q[item.x + 1] - first_token;
  const int context_len = context_lens[item.x], num_rows = num_queries * kGroup;
  const int first_position = context_len - num_queries;  // of the first query
  const int last_row = min(num_rows, item.y + kPrefillRows) - 1;
  const int oldest = first_position + item.y / kGroup, newest = first_position + last_row / kGroup;  // of our queries

  SHARED_MEMORY(unsigned char, bytes);
  Memory memory(bytes);
  constexpr int kPieces = kHeadDim / 8;
  for (int i = threadIdx.x; i < kPrefillRows * kPieces; i += kPrefillThreads) {
    const int row = i / kPieces, column = i % kPieces * 8, of_sequence = item.y + row;
    const bool is_there = of_sequence < num_rows;
    const int64_t token = first_token + of_sequence / kGroup;
    cp_async_16(memory.queries + row * kRowLength<kHeadDim> + column,
                is_there ? query + token * query_stride + (first_head + of_sequence % kGroup) * kHeadDim + column : query,
                is_there);
  }

  const int32_t* table = block_tables + static_cast<int64_t>(item.x) * table_stride;
  const CachedHead<Kept> keys{key_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const CachedHead<Kept> values{value_cache + kv_head * head_stride, table, block_shift, block_stride, token_stride};
  const ScoreShape shape{scale * (key_scales != nullptr ? key_scales[kv_head] : 1.0f) * kLog2E, soft_cap};
  const int end = newest + 1;
  const int begin = window > 0 ? max(0, oldest - window + 1) / kColumns * kColumns : 0;
  // What every row sees: [all_begin, all_end).
  const int all_begin = window > 0 ? newest - window + 1 : 0;
  const int all_end = item.y + kPrefillRows > num_rows ? 0 : oldest + 1;
  Visible visible;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = item.y + warp * kTileRows + lane / 4 + half * 8, position = first_position + row / kGroup;
    visible.begin[half] = window > 0 ? position - window + 1 : 0;
    visible.end[half] = row < num_rows ? position + 1 : 0;
  }

  RowTile<T, kHeadDim, kTiles> rows;
  begin_tiles<Kept, kHeadDim, kColumns>(memory.keys, keys, begin, end);
  for (int at = begin; at < end; at += kColumns) {
    cp_async_wait<0>();
    __syncthreads();  // the keys are there for all, and nobody reads the values before any more
    if (at == begin) rows.begin(memory.queries + warp * kTileRows * kRowLength<kHeadDim>, lane);
    begin_tiles<Kept, kHeadDim, kColumns>(memory.values, values, at, end);
    typename RowTile<T, kHeadDim, kTiles>::Scores scores;
    rows.multiply_keys(scores, memory.as_multiplied(memory.keys), lane);
    rows.weigh(scores, at, visible, shape, at < all_begin || at + kColumns > all_end, lane);
    cp_async_wait<0>();
    __syncthreads();  // the values are there, and nobody reads the keys any more
    if (at + kColumns < end) begin_tiles<Kept, kHeadDim, kColumns>(memory.keys, keys, at + kColumns, end);
    rows.add_values(scores, memory.as_multiplied(memory.values), lane);
  }
  rows.finish();
  const float value_scale = value_scales != nullptr ? value_scales[kv_head] : 1.0f;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = item.y + warp * kTileRows + lane / 4 + half * 8;
    if (row >= num_rows) continue;
    const float scale_of_row = rows.weights[half] > 0.0f ? value_scale / rows.weights[half] : 0.0f;
    T* to = out + ((static_cast<int64_t>(first_token) + row / kGroup) * num_heads + first_head + row % kGroup) * kHeadDim +
            lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; i++)
      *reinterpret_cast<uint32_t*>(to + i * 8) =
          pack_two<T>(rows.sums[i][2 * half] * scale_of_row, rows.sums[i][2 * half + 1] * scale_of_row);
  }
}

}  // namespace tokenbus
