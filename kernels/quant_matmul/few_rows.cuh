// One to sixteen rows, as when each sequence gets one token: every weight is read once, and nothing but that takes time.
//
// A block has 128 columns: four warps side by side, and two for the two halves of its inputs. Each lane asks for its next
// chunks while it computes. Rows come from the caches, since all columns read the same ones.
#pragma once
#include "kernels/quant_matmul/product.cuh"
#include "kernels/quant_matmul/splits.cuh"

namespace tokenbus {

constexpr int kFewThreads = 256;
constexpr int kFewTiles = 4;   // warps side by side
constexpr int kFewHalves = 2;  // warps for the same columns
constexpr int kAhead = 4;      // chunks under way for each warp

template <class Weights>
struct FewLoads {
  Chunk<Weights> weights;
  Rows rows[1];
};

template <class T, class Weights>
static __device__ __forceinline__ void load_few(FewLoads<Weights>& loads, const Matrix& matrix, int tile, int chunk,
                                                const T* x, int num_rows) {
  load_chunk(loads.weights, matrix, tile, chunk);
  const int row = threadIdx.x % 32 / 4;
  const int64_t num_inputs = static_cast<int64_t>(matrix.num_chunks) * kChunk;
  const T* from = x + row * num_inputs + chunk * kChunk + threadIdx.x % 4 * 8;
  const uint4 none = {};
  const uint4 first = row < num_rows ? load_16(from) : none;
  const uint4 second = row + 8 < num_rows ? load_16(from + 8 * num_inputs) : none;
  memcpy(loads.rows[0].first, &first, sizeof first);
  memcpy(loads.rows[0].second, &second, sizeof second);
}

// The chunks from first to last, summed up.
template <class T, class Weights>
static __device__ __forceinline__ void sum_few(float (&totals)[1][kTiles][4], const Matrix& matrix, int tile, int first,
                                               int last, const T* x, int num_rows) {
  float sums[1][kTiles][4] = {};
  FewLoads<Weights> ring[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; i++)
    if (first + i < last) load_few<T>(ring[i], matrix, tile, first + i, x, num_rows);
  for (int base = first; base < last; base += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const int chunk = base + i;
      if (chunk >= last) break;
      FewLoads<Weights>& loads = ring[i];
      if constexpr (Weights::kHasGroups) {
        multiply_chunk<T, Weights>(sums, loads.rows, loads.weights);
        if ((chunk + 1) % matrix.chunks_of_group == 0) end_group(totals, sums, loads.weights.scales);
      } else {
        multiply_chunk<T, Weights>(totals, loads.rows, loads.weights);
      }
      if (chunk + kAhead < last) load_few<T>(loads, matrix, tile, chunk + kAhead, x, num_rows);
    }
  }
}

// x: T [num_rows][inputs]. The grid: ceil(num_columns / 128), splits. A split has groups of its own.
template <class T, class Weights>
__global__ void __launch_bounds__(kFewThreads, 2)
    multiply_few_rows(T* out, const T* x, const uint4* words, const void* scales, const uint16_t* zeros, const T* bias,
                      float* found, uint32_t* arrived, int num_rows, int num_columns, int num_chunks,
                      int chunks_of_group) {
  __shared__ float halves[kFewTiles][kTiles * 4][32];
  const Matrix matrix = {words, scales, zeros, num_chunks, chunks_of_group};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int half = warp / kFewTiles, tile = blockIdx.x * kFewTiles + warp % kFewTiles;
  float totals[1][kTiles][4] = {};
  float* sums = &totals[0][0][0];
  if (tile * kChunk < num_columns) {
    const int num_groups = num_chunks / chunks_of_group, num_parts = gridDim.y * kFewHalves;
    const int part = blockIdx.y * kFewHalves + half;
    const int first = part * num_groups / num_parts * chunks_of_group;
    const int last = (part + 1) * num_groups / num_parts * chunks_of_group;
    sum_few<T, Weights>(totals, matrix, tile, first, last, x, num_rows);
    if constexpr (!Weights::kHasGroups)
      scale_columns(totals, static_cast<const float*>(scales), tile * kChunk + 2 * (lane % 4));
  }
  if (half == 1)
#pragma unroll
    for (int i = 0; i < kTiles * 4; i++) halves[warp % kFewTiles][i][lane] = sums[i];
  __syncthreads();
  if (half == 0)
#pragma unroll
    for (int i = 0; i < kTiles * 4; i++) sums[i] += halves[warp][i][lane];
  if (!add_splits<kTiles * 4, kFewTiles * 32>({found, arrived}, sums) || half == 1) return;
  write_sums<T>({out, bias, num_rows, num_columns}, totals, 0, tile);
}

}  // namespace tokenbus
