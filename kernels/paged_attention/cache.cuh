// Where a token's keys or values lie in the paged cache, and how tiles of them come to shared memory.
#pragma once
#include "kernels/paged_attention/tile.cuh"

namespace tokenbus {

// One head of a sequence in a paged cache: numbers from block to block, from token to token; head_dim beside each
// other. Offsets are 64 bits wide: caches of more than 2^31 numbers are usual.
template <class Kept>
struct CachedHead {
  const Kept* numbers;     // the head's of block 0
  const int32_t* table;    // the sequence's blocks
  int block_shift;         // tokens of a block, as a power of two
  int64_t block_stride, token_stride;

  __device__ __forceinline__ const Kept* token(int position) const {
    const int64_t block = table[position >> block_shift];
    return numbers + block * block_stride + (position & ((1 << block_shift) - 1)) * token_stride;
  }
};

// A row of kHeadDim numbers of the cache in shared memory, 16 bytes longer (see tile.cuh).
template <class Kept, int kHeadDim>
constexpr int kKeptRowLength = kHeadDim + 16 / static_cast<int>(sizeof(Kept));

// Begins to copy the tile of 16 tokens from `first` on by kThreads threads, of which this one is `thread`. Tokens from
// `end` on become zeros: their memory may hold anything, and 0 * NaN would reach the sums.
template <class Kept, int kHeadDim, int kThreads>
static __device__ __forceinline__ void begin_tile(Kept* shared, const CachedHead<Kept>& head, int first, int end,
                                                  int thread) {
  constexpr int kPieces = kHeadDim * static_cast<int>(sizeof(Kept)) / 16, kPiece = kNumbers<Kept>;
  const Kept* tile = head.token(first);  // one look-up: a tile lies in one block
#pragma unroll
  for (int i = thread; i < kTileTokens * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool is_there = first + row < end;
    const Kept* from = is_there ? tile + row * head.token_stride + piece * kPiece : head.numbers;
    cp_async_16(shared + row * kKeptRowLength<Kept, kHeadDim> + piece * kPiece, from, is_there);
  }
}

// A tile of fp8 in shared memory as T, by kThreads threads.
template <class T, class Kept, int kHeadDim, int kThreads>
static __device__ __forceinline__ void widen_tile(T* to, const Kept* from, int thread) {
  constexpr int kPiece = 8, kPieces = kHeadDim / kPiece;
#pragma unroll
  for (int i = thread; i < kTileTokens * kPieces; i += kThreads) {
    const int row = i / kPieces, column = i % kPieces * kPiece;
    const Kept* narrow = from + row * kKeptRowLength<Kept, kHeadDim> + column;
    float wide[kPiece];
#pragma unroll
    for (int k = 0; k < kPiece; k++) wide[k] = to_float<Kept>(narrow[k]);
    *reinterpret_cast<uint4*>(to + row * kRowLength<kHeadDim> + column) = pack_16<T>(wide);
  }
}

}  // namespace tokenbus
