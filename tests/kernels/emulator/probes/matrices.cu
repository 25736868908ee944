// Fragments of matrices, as a warp loads and multiplies them.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// out: [32][4]; rows: [32][8] 16-bit numbers, by the lane that gives each.
template <bool kTransposed>
__global__ void loaded(uint32_t* out, const uint16_t* rows) {
  __shared__ __align__(16) uint16_t shared[32][8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; i++) shared[lane][i] = rows[lane * 8 + i];
  __syncwarp();
  uint32_t own[4];
  if constexpr (kTransposed)
    ldmatrix_4_transposed(own, shared[lane]);
  else
    ldmatrix_4(own, shared[lane]);
  for (int i = 0; i < 4; i++) out[lane * 4 + i] = own[i];
}

// sums += a * b. sums: [32][4], a: [32][4], b: [32][2]: fragments by lane.
template <class T>
__global__ void product_of_fragments(float* sums, const uint32_t* a, const uint32_t* b) {
  const int lane = threadIdx.x;
  float own[4];
  uint32_t own_a[4];
  for (int i = 0; i < 4; i++) own[i] = sums[lane * 4 + i], own_a[i] = a[lane * 4 + i];
  mma_16x8x16<T>(own, own_a, b[lane * 2], b[lane * 2 + 1]);
  for (int i = 0; i < 4; i++) sums[lane * 4 + i] = own[i];
}

// The whole way. out: float [16][16]; a: T [16][16]; b: T [16][16] with as many rows as a has columns.
template <class T>
__global__ void product(float* out, const T* a, const T* b) {
  __shared__ __align__(16) T of_a[16][16], of_b[16][16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) of_a[i / 16][i % 16] = a[i], of_b[i / 16][i % 16] = b[i];
  __syncwarp();
  uint32_t left[4], right[4];
  ldmatrix_4(left, &of_a[lane % 16][lane / 16 * 8]);
  ldmatrix_4_transposed(right, &of_b[lane % 16][lane / 16 * 8]);
  for (int side = 0; side < 2; side++) {
    float sums[4] = {};
    mma_16x8x16<T>(sums, left, right[2 * side], right[2 * side + 1]);
    for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 16 + side * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

// Loads 16 rows of `row_bytes` from their beginning, 16 numbers of each.
__global__ void loads_of_rows(uint32_t* out, int row_bytes) {
  SHARED_MEMORY(uint8_t, shared);
  const int lane = threadIdx.x;
  uint32_t own[4];
  ldmatrix_4(own, shared + lane % 16 * row_bytes + lane / 16 * 16);
  out[lane] = own[0];
}

__global__ void load_matrix_at(uint32_t* out, int offset) {
  SHARED_MEMORY(uint8_t, shared);
  uint32_t own[4];
  ldmatrix_4(own, shared + threadIdx.x * 16 + offset);
  out[threadIdx.x] = own[0];
}

}  // namespace tokenbus
