// What kernels/cuda/ptx.cuh says in PTX: copies to shared memory, matrices in registers, by the fragment layouts of the
// PTX manual (ldmatrix, mma.m16n8k16).
#pragma once
#include "tests/kernels/emulator/copies.h"
#include "tests/kernels/emulator/intrinsics.h"
#include "tests/kernels/emulator/warp.h"

namespace emulator {

// 8 x 8 matrices of 16-bit numbers that one ldmatrix takes, with 8 lanes' row addresses for each; banks of 4 bytes.
constexpr int kMatrices = 4, kSide = 8, kBanks = 32;

struct MatrixRow {
  uint16_t values[kSide];
  uintptr_t address;
};

// Further rounds that the banks need for one matrix's rows. What several lanes name is read once for all.
static inline int conflicts(Fiber* const* lanes) {
  int uses[kBanks] = {}, most = 1;
  uintptr_t addresses[kSide];
  for (int row = 0; row < kSide; row++) {
    addresses[row] = static_cast<const MatrixRow*>(lanes[row]->collective.in)->address;
    if (std::find(addresses, addresses + row, addresses[row]) != addresses + row) continue;
    for (int word = 0; word < 4; word++) most = std::max(most, ++uses[(addresses[row] / 4 + word) % kBanks]);
  }
  return most - 1;
}

// Each lane's row is read when that lane comes: ldmatrix waits for nobody's stores.
template <bool kTransposed>
static inline void load_matrices(uint32_t (&out)[kMatrices], const void* row) {
  expect_aligned(row, 16, "ldmatrix");
  MatrixRow own;
  memcpy(own.values, row, sizeof own.values);
  own.address = reinterpret_cast<uintptr_t>(row);
  block->meet_lanes(kTransposed ? kMatrixLoadTransposed : kMatrixLoad, kAllLanes, &own, out, [](Fiber* const* lanes) {
    block->counts.matrix_loads++;
    for (int matrix = 0; matrix < kMatrices; matrix++) {
      Fiber* const* rows = lanes + matrix * kSide;
      block->counts.bank_conflicts += conflicts(rows);
      for (int lane = 0; lane < kWarp; lane++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
          const int outer = lane / 4, inner = lane % 4 * 2 + i;
          const int from = kTransposed ? inner : outer, at = kTransposed ? outer : inner;
          pair[i] = static_cast<const MatrixRow*>(rows[from]->collective.in)->values[at];
        }
        memcpy(static_cast<uint32_t*>(lanes[lane]->collective.out) + matrix, pair, sizeof pair);
      }
    }
  });
}

template <class Value>
float widened(uint16_t bits);
template <>
inline float widened<__nv_bfloat16>(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
template <>
inline float widened<__half>(uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

// sums += a * b for a warp: a is 16 x 16 by rows, b 16 x 8 by columns, sums 16 x 8.
template <class Value>
static inline void multiply_matrices(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct In {
    const uint32_t* a;
    uint32_t b[2];
  } in{a, {b0, b1}};
  block->meet_lanes(kMatrixProduct, kAllLanes, &in, sums, [](Fiber* const* lanes) {
    block->counts.matrix_products++;
    float a[16][16], b[16][8], sum[16][8];
    for (int lane = 0; lane < kWarp; lane++) {
      const In& own = *static_cast<const In*>(lanes[lane]->collective.in);
      const float* own_sums = static_cast<const float*>(lanes[lane]->collective.out);
      const int row = lane / 4, column = lane % 4 * 2;
      for (int i = 0; i < 2; i++) {
        for (int word = 0; word < 4; word++)
          a[row + word % 2 * 8][column + i + word / 2 * 8] = widened<Value>(own.a[word] >> (16 * i));
        for (int word = 0; word < 2; word++) b[column + i + word * 8][row] = widened<Value>(own.b[word] >> (16 * i));
      }
      for (int i = 0; i < 4; i++) sum[row + i / 2 * 8][column + i % 2] = own_sums[i];
    }
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < 16; k++)
        for (int column = 0; column < 8; column++) sum[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < kWarp; lane++) {
      float* own_sums = static_cast<float*>(lanes[lane]->collective.out);
      for (int i = 0; i < 4; i++) own_sums[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  });
}

}  // namespace emulator

namespace tokenbus {

#define SHARED_MEMORY(T, name) T* name = reinterpret_cast<T*>(emulator::block->shared_memory())

static inline void cp_async_16(void* shared, const void* global, bool is_there) {
  emulator::begin_copy(shared, global, is_there ? 16 : 0, is_there ? 0 : 16);
}
static inline void cp_async_commit() { emulator::commit_copies(); }
template <int kPending>
static inline void cp_async_wait() {
  emulator::await_copies(kPending);
}

static inline void ldmatrix_4(uint32_t (&out)[4], const void* row) { emulator::load_matrices<false>(out, row); }
static inline void ldmatrix_4_transposed(uint32_t (&out)[4], const void* row) {
  emulator::load_matrices<true>(out, row);
}

template <class T>
static inline void mma_16x8x16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::multiply_matrices<T>(sums, a, b0, b1);
}

static inline float exp2_fast(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126f ? 0.0f : power;
}

static inline uint4 load_16(const void* from) {
  emulator::expect_aligned(from, 16, "a 16-byte load");
  emulator::count(&emulator::Counts::loaded_bytes, 16);
  return *static_cast<const uint4*>(from);
}

}  // namespace tokenbus
