// What both kernels do with a chunk, and with the sums at the end.
#pragma once
#include "kernels/quant_matmul/weights.cuh"

namespace tokenbus {

// The weights of a launch. words: chunks of kWords * 4 bytes for each of 32 lanes, the inputs of a chunk's columns one
// after another. scales: Int4: float16 [columns / 32][groups][4][4][2], else float [columns]. zeros: uint16
// [columns / 32][groups][8].
struct Matrix {
  const uint4* words;
  const void* scales;
  const uint16_t* zeros;
  int num_chunks;        // of a column's inputs
  int chunks_of_group;   // Int8, Fp8: 1
};

// What a lane holds of a chunk.
template <class Weights>
struct Chunk {
  uint32_t words[Weights::kWords];
  uint4 scales;
  uint32_t zeros;
};

// tile: of 32 columns. chunk: of its inputs.
template <class Weights>
static __device__ __forceinline__ void load_chunk(Chunk<Weights>& loaded, const Matrix& matrix, int tile, int chunk) {
  constexpr int kLoads = Weights::kWords / 4;
  const int lane = threadIdx.x % 32;
  const uint4* at = matrix.words + (static_cast<int64_t>(tile) * matrix.num_chunks + chunk) * (kLoads * 32) + lane;
#pragma unroll
  for (int load = 0; load < kLoads; load++) {
    const uint4 bytes = load_16(at + load * 32);
    memcpy(loaded.words + 4 * load, &bytes, sizeof bytes);
  }
  if constexpr (Weights::kHasGroups) {
    const int num_groups = matrix.num_chunks / matrix.chunks_of_group;
    const int64_t group = static_cast<int64_t>(tile) * num_groups + chunk / matrix.chunks_of_group;
    loaded.scales = load_16(static_cast<const char*>(matrix.scales) + group * kScaleBytes + lane % 4 * 16);
    loaded.zeros = matrix.zeros[group * kZeroWords + lane / 4];
  }
}

// A lane's inputs of a chunk, of rows r and r + 8 of sixteen, r = l / 4.
struct Rows {
  uint32_t first[kPairs], second[kPairs];
};

// sums[m][tile]: 16 x 8 fragments of kRows times sixteen rows.
template <class T, class Weights, int kRows>
static __device__ __forceinline__ void multiply_chunk(float (&sums)[kRows][kTiles][4], const Rows (&rows)[kRows],
                                                      const Chunk<Weights>& chunk) {
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++) {
    uint32_t pairs[kPairs];
    Weights::template unpack<T>(pairs, chunk.words, tile, chunk.zeros);
#pragma unroll
    for (int m = 0; m < kRows; m++)
#pragma unroll
      for (int step = 0; step < 2; step++) {
        const uint32_t a[4] = {rows[m].first[2 * step], rows[m].second[2 * step], rows[m].first[2 * step + 1],
                               rows[m].second[2 * step + 1]};
        mma_16x8x16<T>(sums[m][tile], a, pairs[2 * step], pairs[2 * step + 1]);
      }
  }
}

// A group has ended: its sums times its scales go to the totals.
template <int kRows>
static __device__ __forceinline__ void end_group(float (&totals)[kRows][kTiles][4], float (&sums)[kRows][kTiles][4],
                                                 const uint4& scales) {
  __half of_columns[kTiles][2];
  memcpy(of_columns, &scales, sizeof scales);
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float scale = __half2float(of_columns[tile][i % 2]);
#pragma unroll
      for (int m = 0; m < kRows; m++) {
        totals[m][tile][i] += scale * sums[m][tile][i];
        sums[m][tile][i] = 0.0f;
      }
    }
}

// The same where each column has one scale. columns: the first of the lane's two in the first of the tiles.
template <int kRows>
static __device__ __forceinline__ void scale_columns(float (&sums)[kRows][kTiles][4], const float* scales, int columns) {
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float scale = scales[columns + 8 * tile + i % 2];
#pragma unroll
      for (int m = 0; m < kRows; m++) sums[m][tile][i] *= scale;
    }
}

// Where a launch writes. bias: T [num_columns] or null.
template <class T>
struct Result {
  T* out;
  const T* bias;
  int num_rows, num_columns;
};

// sums: of rows from first_row on and the lane's columns of a chunk's.
template <class T, int kRows>
static __device__ __forceinline__ void write_sums(const Result<T>& result, const float (&sums)[kRows][kTiles][4],
                                                  int first_row, int tile_of_columns) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++) {
    const int column = tile_of_columns * kChunk + 8 * tile + 2 * (lane % 4);
    if (column >= result.num_columns) break;
    float bias[2] = {};
    if (result.bias != nullptr)
      for (int i = 0; i < 2; i++) bias[i] = to_float<T>(result.bias[column + i]);
#pragma unroll
    for (int m = 0; m < kRows; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = first_row + 16 * m + 8 * half + lane / 4;
        if (row >= result.num_rows) continue;
        const uint32_t both =
            pack_two<T>(sums[m][tile][2 * half] + bias[0], sums[m][tile][2 * half + 1] + bias[1]);
        *reinterpret_cast<uint32_t*>(result.out + static_cast<int64_t>(row) * result.num_columns + column) = both;
      }
  }
}

}  // namespace tokenbus
