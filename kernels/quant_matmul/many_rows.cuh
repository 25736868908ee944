// More than sixteen rows: 64 of them by 256 columns for a block, each of its eight warps 32 columns of all 64 rows.
//
// Rows come to shared memory by cp.async, three stages of 64 inputs. Weights go from global memory to registers and are
// unpacked there, by the one warp that needs them: no weight is unpacked twice in a block, and none takes up shared
// memory or waits at a barrier. Rows are read as 16 bytes a lane, which the swizzle spreads over all banks.
#pragma once
#include "kernels/quant_matmul/product.cuh"
#include "kernels/quant_matmul/splits.cuh"

namespace tokenbus {

constexpr int kManyThreads = 256;
constexpr int kManyTiles = kManyThreads / 32;
constexpr int kManyRows = 64;
constexpr int kSixteens = kManyRows / 16;
constexpr int kStages = 3;
constexpr int kStageChunks = 2;
constexpr int kUnits = kStageChunks * kChunk / 8;  // of 16 bytes in a row of a stage

// Where 16 bytes of a row lie: two neighbouring rows, of which eight lanes read four units each, use different banks.
static __device__ __forceinline__ int place(int row, int unit) { return row * kUnits + (unit ^ row % 2 * (kUnits / 2)); }

// Begins to copy inputs of a stage, those of chunks below last.
template <class T>
static __device__ __forceinline__ void copy_stage(uint4* stage, const T* x, int first_row, int num_rows, int chunk,
                                                  int last, int num_chunks) {
#pragma unroll
  for (int i = 0; i < kManyRows * kUnits / kManyThreads; i++) {
    const int row = (i * kManyThreads + threadIdx.x) / kUnits, unit = threadIdx.x % kUnits;
    const bool is_there = first_row + row < num_rows && chunk + unit / (kChunk / 8) < last;
    const int64_t at = static_cast<int64_t>(first_row + row) * num_chunks * kChunk + chunk * kChunk + unit * 8;
    cp_async_16(stage + place(row, unit), x + (is_there ? at : 0), is_there);
  }
}

static __device__ __forceinline__ void read_rows(Rows (&rows)[kSixteens], const uint4* stage, int chunk) {
  const int lane = threadIdx.x % 32, unit = chunk * (kChunk / 8) + lane % 4;
#pragma unroll
  for (int m = 0; m < kSixteens; m++) {
    memcpy(rows[m].first, stage + place(16 * m + lane / 4, unit), sizeof rows[m].first);
    memcpy(rows[m].second, stage + place(16 * m + 8 + lane / 4, unit), sizeof rows[m].second);
  }
}

// The grid: ceil(num_columns / 256), splits, ceil(num_rows / 64). Otherwise as multiply_few_rows.
template <class T, class Weights>
__global__ void __launch_bounds__(kManyThreads, 1)
    multiply_many_rows(T* out, const T* x, const uint4* words, const void* scales, const uint16_t* zeros, const T* bias,
                       float* found, uint32_t* arrived, int num_rows, int num_columns, int num_chunks,
                       int chunks_of_group) {
  __shared__ uint4 stages[kStages][kManyRows * kUnits];
  const Matrix matrix = {words, scales, zeros, num_chunks, chunks_of_group};
  const int num_groups = num_chunks / chunks_of_group, num_splits = gridDim.y, split = blockIdx.y;
  const int first = split * num_groups / num_splits * chunks_of_group;
  const int last = (split + 1) * num_groups / num_splits * chunks_of_group;
  const int tile = blockIdx.x * kManyTiles + threadIdx.x / 32, first_row = blockIdx.z * kManyRows;
  const bool has_columns = tile * kChunk < num_columns;
  float totals[kSixteens][kTiles][4] = {}, sums[kSixteens][kTiles][4] = {};
  Chunk<Weights> next[kStageChunks];
#pragma unroll
  for (int stage = 0; stage < kStages - 1; stage++) {
    copy_stage(stages[stage], x, first_row, num_rows, first + stage * kStageChunks, last, num_chunks);
    cp_async_commit();
  }
#pragma unroll
  for (int i = 0; i < kStageChunks; i++)
    if (has_columns && first + i < last) load_chunk(next[i], matrix, tile, first + i);
  int stage = 0;
  for (int base = first; base < last; base += kStageChunks) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    const int free_stage = stage == 0 ? kStages - 1 : stage - 1;  // which all warps have read
    copy_stage(stages[free_stage], x, first_row, num_rows, base + (kStages - 1) * kStageChunks, last, num_chunks);
    cp_async_commit();
#pragma unroll
    for (int i = 0; i < kStageChunks; i++) {
      if (!has_columns || base + i >= last) break;
      const Chunk<Weights> weights = next[i];
      if (base + i + kStageChunks < last) load_chunk(next[i], matrix, tile, base + i + kStageChunks);
      Rows rows[kSixteens];
      read_rows(rows, stages[stage], i);
      if constexpr (Weights::kHasGroups) {
        multiply_chunk<T, Weights>(sums, rows, weights);
        if ((base + i + 1) % chunks_of_group == 0) end_group(totals, sums, weights.scales);
      } else {
        multiply_chunk<T, Weights>(totals, rows, weights);
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  if constexpr (!Weights::kHasGroups)
    if (has_columns)
      scale_columns(totals, static_cast<const float*>(scales), tile * kChunk + 2 * (threadIdx.x % 4));
  if (!add_splits<kSixteens * kTiles * 4, kManyThreads>({found, arrived}, &totals[0][0][0]) || !has_columns) return;
  write_sums<T>({out, bias, num_rows, num_columns}, totals, first_row, tile);
}

}  // namespace tokenbus
