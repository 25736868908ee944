// Sixteen rows of queries on the tensor cores of one warp: scores, softmax and weighted values of one tile of keys at a
// time, by the online softmax of FlashAttention.
//
// A row is a query of one head; all heads of a group share their keys and values, so that each is read once for up to
// 16 rows. Scores are scaled by log2(e), so that exp is exp2. A hidden score is -inf; a row that has seen nothing yet
// has -inf as its greatest score, and is treated apart: -inf minus -inf is no number.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kTileTokens = 16;  // a tile lies in one block of the cache, whose size is a multiple of it
constexpr int kTileRows = 16;

static __device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// In shared memory rows of queries, keys and values are 16 bytes longer than they need be: the rows that ldmatrix reads
// at once then lie in different banks, for each head_dim from 64 to 256.
template <int kHeadDim>
constexpr int kRowLength = kHeadDim + 8;

// What the two rows of a lane see, by position: [begin, end).
struct Visible {
  int begin[2], end[2];
};

// scale: of a product, log2(e) included. soft_cap: 0, or what scores approach: cap * tanh(score / cap).
struct ScoreShape {
  float scale, soft_cap;

  __device__ __forceinline__ float of(float product) const {
    if (soft_cap == 0.0f) return product * scale;
    const float cap = soft_cap * kLog2E;
    return cap * tanhf(product * scale / cap);
  }
};

// kTiles: of keys that pass at once.
template <class T, int kHeadDim, int kTiles>
class RowTile {
 public:
  using Scores = float[2 * kTiles][4];

  // queries: [16][kRowLength] in shared memory, where they stay: wide heads are read from there again and again, since
  // a thread has no registers for them besides its sums.
  __device__ __forceinline__ void begin(const T* queries, int lane) {
    own_queries_ = queries + lane % 16 * kRow + lane / 16 * 8;
    if constexpr (kKeepsQueries)
#pragma unroll
      for (int k = 0; k < kSteps; k++) ldmatrix_4(queries_[k], own_queries_ + k * 16);
#pragma unroll
    for (int i = 0; i < kColumns; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
    greatest[0] = greatest[1] = minus_infinity();
    weights[0] = weights[1] = 0.0f;
  }

  // keys: [16 kTiles][kRowLength].
  __device__ __forceinline__ void multiply_keys(Scores& scores, const T* keys, int lane) const {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) scores[i][j] = 0.0f;
#pragma unroll
    for (int k = 0; k < kSteps; k++) {
      uint32_t queries[4];
      if constexpr (kKeepsQueries)
        memcpy(queries, queries_[k], sizeof queries);
      else
        ldmatrix_4(queries, own_queries_ + k * 16);
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        uint32_t pairs[4];
        const int row = tile * kTileTokens + lane % 8 + lane / 16 * 8, column = k * 16 + lane / 8 % 2 * 8;
        ldmatrix_4(pairs, keys + row * kRow + column);
        mma_16x8x16<T>(scores[2 * tile], queries, pairs[0], pairs[1]);
        mma_16x8x16<T>(scores[2 * tile + 1], queries, pairs[2], pairs[3]);
      }
    }
  }

  // Turns scores into weights, relative to the greatest score so far, and rescales what was summed before. first: the
  // position of the first key; hides: whether any row does not see some of them.
  __device__ __forceinline__ void weigh(Scores& scores, int first, const Visible& visible, const ScoreShape& shape,
                                        bool hides, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int position = first + i * 8 + lane % 4 * 2 + j % 2, row = j / 2;
        const bool is_hidden = hides && (position < visible.begin[row] || position >= visible.end[row]);
        scores[i][j] = is_hidden ? minus_infinity() : shape.of(scores[i][j]);
      }
#pragma unroll
    for (int row = 0; row < 2; row++) {
      float most = minus_infinity();
#pragma unroll
      for (int i = 0; i < 2 * kTiles; i++) most = fmaxf(most, fmaxf(scores[i][2 * row], scores[i][2 * row + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, greatest[row]);
      const float base = most == minus_infinity() ? 0.0f : most;
      const float rescaling = exp2_fast(greatest[row] - base);
      greatest[row] = most;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; i++)
#pragma unroll
        for (int j = 2 * row; j < 2 * row + 2; j++) {
          scores[i][j] = exp2_fast(scores[i][j] - base);
          sum += scores[i][j];
        }
      weights[row] = weights[row] * rescaling + sum;
#pragma unroll
      for (int i = 0; i < kColumns; i++) {
        sums[i][2 * row] *= rescaling;
        sums[i][2 * row + 1] *= rescaling;
      }
    }
  }

  // values: [16 kTiles][kRowLength]; what a row does not see must be finite.
  __device__ __forceinline__ void add_values(const Scores& scores, const T* values, int lane) {
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      const auto& first = scores[2 * tile];
      const auto& second = scores[2 * tile + 1];
      const uint32_t pairs[4] = {pack_two<T>(first[0], first[1]), pack_two<T>(first[2], first[3]),
                                 pack_two<T>(second[0], second[1]), pack_two<T>(second[2], second[3])};
#pragma unroll
      for (int d = 0; d < kSteps; d++) {
        uint32_t columns[4];
        ldmatrix_4_transposed(columns, values + (tile * kTileTokens + lane % 16) * kRow + d * 16 + lane / 16 * 8);
        mma_16x8x16<T>(sums[2 * d], pairs, columns[0], columns[1]);
        mma_16x8x16<T>(sums[2 * d + 1], pairs, columns[2], columns[3]);
      }
    }
  }

  // Adds up the weights of each row, of which a lane has every fourth pair.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      weights[row] += __shfl_xor_sync(0xffffffffu, weights[row], 1);
      weights[row] += __shfl_xor_sync(0xffffffffu, weights[row], 2);
    }
  }

  // Of the lane's two rows, lane / 4 and that + 8: columns 8 i + 2 (lane % 4) and the next are sums[i][0], [1] of the
  // first and [2], [3] of the second.
  float sums[kHeadDim / 8][4];
  float greatest[2], weights[2];

 private:
  static constexpr int kSteps = kHeadDim / 16, kColumns = kHeadDim / 8, kRow = kRowLength<kHeadDim>;

  static constexpr bool kKeepsQueries = kHeadDim <= 128;

  const T* own_queries_;
  uint32_t queries_[kKeepsQueries ? kSteps : 1][4];
};

}  // namespace tokenbus
