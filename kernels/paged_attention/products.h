// The two products of attention for up to kBlockRows rows: queries with keys, weights with values.
//
// Both keep a block of sums in registers while packed tiles pass by (native/pairs.h): each register of keys or values is
// used for all rows, each broadcast of a query or of weights for one register or several. A sum's order is by head element
// or by position alone, however wide the block is. While a tile is used, a later one is fetched into the cache: tiles are
// small and lie anywhere in memory, so the processor does not foresee them.
//
// Zen 5, two cores (bench.kernels_cpu): with AVX2 192 GFLOP/s for a prompt of 512 tokens and 106 for decoding 16 sequences
// of 512, which is 35 GB/s; with AVX512-BF16 526 and 127.
#pragma once
#include "kernels/native/pairs.h"
#include "kernels/paged_attention/attention.h"
#include "kernels/paged_attention/row_state.h"

namespace tokenbus {

constexpr int kTilesAhead = 4;  // how much later; 2 to 16 were tried

// One thread's memory for the rows and the part that it is busy with.
struct AttentionScratch {
  alignas(64) RowNumber queries[kBlockRows][kMaxHeadDim];
  alignas(64) float scores[kBlockRows][kPartTokens];
  alignas(64) RowNumber weights[kBlockRows][kPartTokens];  // rounded to bf16
  alignas(64) f32x16 highest[kBlockRows];  // of a row's scores, by lane
  std::vector<f32x16> states;              // of a task's rows
};

// What some rows see of one part. Positions count from the part's first token.
struct PartRows {
  int begin[kBlockRows], end[kBlockRows];  // row r sees [begin[r], end[r])
  int first_tile, last_tile;               // tiles of which any row sees anything
  int common_begin, common_end;            // what all rows see
  int seen_end;                            // no row sees this or what follows
  // The tiles in the order of their use: keys, values, and the first keys of the next part.
  const bf16* stream[2 * kPartTiles + kTilesAhead];

  int num_tiles() const { return last_tile - first_tile; }
};

#ifdef __AVX512F__  // 32 registers, of which 24 hold sums
constexpr int score_tiles(int rows) { return rows <= 6 ? 4 : 2; }
constexpr int value_columns(int rows) { return rows <= 3 ? 8 : rows <= 6 ? 4 : 2; }
#else  // 16 of half the width, of which 12 hold sums
constexpr int score_tiles(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr int value_columns(int rows) { return score_tiles(rows); }
#endif

static inline void hide(f32x16& scores, int position, int begin, int end) {
  alignas(64) constexpr int32_t kLanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const i32x16 positions = load<i32x16>(kLanes) + position;
  scores = choose((positions >= begin) & (positions < end), scores, broadcast(-__builtin_inff()));
}

// Scores of kTiles tiles, from the index-th of the stream on.
template <int kRows, int kTiles>
static inline void score_some(const PartRows& part, int index, int head_dim, AttentionScratch& scratch) {
  f32x16 sums[kRows][kTiles] = {};
  const bf16* const* keys = part.stream + index;
  for (int d = 0; d < head_dim; d += 2)
    add_products<2>(
        sums, [&](int tile) { return keys[tile] + d * kTileTokens; }, [&](int row) { return scratch.queries[row] + d; },
        [&](int tile) { __builtin_prefetch(keys[tile + kTilesAhead] + d * kTileTokens); });
#pragma GCC unroll 4
  for (int tile = 0; tile < kTiles; tile++) {
    const int position = (part.first_tile + index + tile) * kTileTokens;
    const bool all_seen = position >= part.common_begin && position + kTileTokens <= part.common_end;
#pragma GCC unroll 12
    for (int row = 0; row < kRows; row++) {
      f32x16 scores = sums[row][tile];
      if (!all_seen) hide(scores, position, part.begin[row], part.end[row]);
      store(scratch.scores[row] + position, scores);
      scratch.highest[row] = max(scratch.highest[row], scores);
    }
  }
}

// Fills scratch.scores, hidden ones with -inf, and scratch.highest.
template <int kRows>
static inline void score(const PartRows& part, int head_dim, AttentionScratch& scratch) {
  constexpr int kTiles = score_tiles(kRows);
  for (int row = 0; row < kRows; row++) scratch.highest[row] = broadcast(-__builtin_inff());
  int index = 0;
  for (; index + kTiles <= part.num_tiles(); index += kTiles)
    score_some<kRows, kTiles>(part, index, head_dim, scratch);
  for (; index < part.num_tiles(); index++) score_some<kRows, 1>(part, index, head_dim, scratch);
}

// Weighted sums of kColumns * 16 columns of the values, from column d on, merged into the rows' outputs.
template <int kRows, int kColumns>
static inline void sum_some_values(const PartRows& part, int d, int head_dim, const AttentionScratch& scratch,
                                   const Rescaling& rescaling, float* outputs) {
  f32x16 sums[kRows][kColumns] = {};
  const bf16* const* tiles = part.stream + part.num_tiles();
  for (int index = 0; index < part.num_tiles(); index++) {
    const int position = (part.first_tile + index) * kTileTokens;
    const int left = part.seen_end - position, num_pairs = left < kTileTokens ? left / 2 : kTileTokens / 2;
    const bf16* from = tiles[index] + 2 * d;
    const bf16* later = tiles[index + kTilesAhead] + 2 * d;
    for (int pair = 0; pair < num_pairs; pair++) {
      const int offset = 2 * pair * head_dim;
      add_products<2>(
          sums, [&](int column) { return from + offset + column * 32; },
          [&](int row) { return scratch.weights[row] + position + 2 * pair; },
          [&](int column) { __builtin_prefetch(later + offset + column * 32); });
    }
  }
  if (part.seen_end % 2 == 1) {  // the last pair's second token may not be there
    const int last = part.seen_end - 1;
    const bf16* from = tiles[part.num_tiles() - 1] + last % kTileTokens * head_dim + 2 * d;
    add_products<1>(
        sums, [&](int column) { return from + column * 32; }, [&](int row) { return scratch.weights[row] + last; },
        [](int) {});
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; row++) {
    float* output = outputs + static_cast<size_t>(row) * head_dim + d;
#pragma GCC unroll 8
    for (int column = 0; column < kColumns; column++)
      store(output + column * 16, rescaling.of(row, load<f32x16>(output + column * 16), sums[row][column]));
  }
}

// Columns from d on, as many at a time as there are registers.
template <int kRows, int kColumns>
static inline void sum_values(const PartRows& part, int d, int head_dim, const AttentionScratch& scratch,
                              const Rescaling& rescaling, float* outputs) {
  for (; d + kColumns * 16 <= head_dim; d += kColumns * 16)
    sum_some_values<kRows, kColumns>(part, d, head_dim, scratch, rescaling, outputs);
  if constexpr (kColumns > 1) sum_values<kRows, kColumns / 2>(part, d, head_dim, scratch, rescaling, outputs);
}

}  // namespace tokenbus
