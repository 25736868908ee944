// Blocks of the KV cache from place to place, as bytes, in all planes (each layer's keys, each layer's values) at once.
//
// One kernel does it all: within the cache, from the cache into a row of blocks, and back. Offsets are 64 bits wide.
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

constexpr int kCopyThreads = 256;
constexpr int kCopiesAtOnce = 4;  // of 16 bytes by a thread: enough reads under way to fill the memory's pipe

// A block of threads for each pair (x) and plane (y). to_blocks, from_blocks: int32 [pairs], or null: block i of pair
// i. num_steps: of 16 bytes, that a block has in a plane. Strides from plane to plane and block to block, in bytes;
// strides and addresses: multiples of 16. What is read by any pair must not be written by another.
__global__ void __launch_bounds__(kCopyThreads)
    copy_blocks(uint8_t* to, const uint8_t* from, const int32_t* to_blocks, const int32_t* from_blocks, int num_steps,
                int64_t to_plane_stride, int64_t to_block_stride, int64_t from_plane_stride,
                int64_t from_block_stride) {
  const int64_t pair = blockIdx.x, plane = blockIdx.y;
  const int64_t to_block = to_blocks != nullptr ? to_blocks[pair] : pair;
  const int64_t from_block = from_blocks != nullptr ? from_blocks[pair] : pair;
  uint4* target = reinterpret_cast<uint4*>(to + plane * to_plane_stride + to_block * to_block_stride);
  const uint8_t* source = from + plane * from_plane_stride + from_block * from_block_stride;
#pragma unroll 1
  for (int first = threadIdx.x; first < num_steps; first += kCopiesAtOnce * kCopyThreads) {
    uint4 kept[kCopiesAtOnce];
#pragma unroll
    for (int i = 0; i < kCopiesAtOnce; i++) {
      const int64_t step = first + i * kCopyThreads;
      if (step < num_steps) kept[i] = load_16(source + 16 * step);
    }
#pragma unroll
    for (int i = 0; i < kCopiesAtOnce; i++) {
      const int64_t step = first + i * kCopyThreads;
      if (step < num_steps) target[step] = kept[i];
    }
  }
}

}  // namespace tokenbus
