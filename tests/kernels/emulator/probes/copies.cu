// Copies that arrive when they are waited for.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// One thread begins a copy. seen: [3][16]: shared memory before the commit, before the wait and after; from: [16].
__global__ void seen_of_a_copy(uint8_t* seen, const uint8_t* from, bool is_there) {
  __shared__ __align__(16) uint8_t shared[16];
  for (int i = 0; i < 16; i++) shared[i] = 0xaa;
  cp_async_16(shared, from, is_there);
  for (int i = 0; i < 16; i++) seen[i] = shared[i];
  cp_async_commit();
  for (int i = 0; i < 16; i++) seen[16 + i] = shared[i];
  cp_async_wait<0>();
  for (int i = 0; i < 16; i++) seen[32 + i] = shared[i];
}

// Which of five copies, a group each and the last one not committed, have arrived. seen: [5]; from: [16].
template <int kPending>
__global__ void arrived(int* seen, const uint8_t* from) {
  __shared__ __align__(16) uint8_t shared[5][16];
  for (int i = 0; i < 5; i++) shared[i][0] = 0xaa;
  for (int i = 0; i < 5; i++) {
    cp_async_16(shared[i], from, true);
    if (i < 4) cp_async_commit();
  }
  cp_async_wait<kPending>();
  for (int i = 0; i < 5; i++) seen[i] = shared[i][0] != 0xaa;
}

// As many groups as `count`, each a copy, under way together.
__global__ void many_groups(const uint8_t* from, int count) {
  __shared__ __align__(16) uint8_t shared[32][16];
  for (int i = 0; i < count; i++) {
    cp_async_16(shared[i], from, true);
    cp_async_commit();
  }
  cp_async_wait<0>();
}

// To and from addresses that are `to_offset` and `from_offset` past a multiple of 16.
__global__ void copy_at(const uint8_t* from, int to_offset, int from_offset, bool is_there) {
  __shared__ __align__(16) uint8_t shared[32];
  cp_async_16(shared + to_offset, from + from_offset, is_there);
  cp_async_commit();
  cp_async_wait<0>();
}

__global__ void load_at(uint32_t* out, const uint8_t* from, int offset) { *out = load_16(from + offset).x; }

// Each thread loads 16 bytes and copies 16, of which those of odd threads are not there.
__global__ void traffic(uint32_t* out, const uint8_t* from) {
  SHARED_MEMORY(uint8_t, shared);
  const int own = threadIdx.x;
  cp_async_16(shared + own * 16, from + own * 16, own % 2 == 0);
  out[own] = load_16(from + own * 16).w;
}

}  // namespace tokenbus
