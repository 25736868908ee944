// Products on tiles, for both encodings whose panels are what the tile instructions want: words of four bytes (two
// bfloat16, or four bytes) of 32 columns beside each other.
//
// One step takes 64 bytes of inputs: 16 words of up to 32 rows, and 2 KB of weights. A block has 2 x 2 tiles of sums,
// so each tile that is loaded is used twice. The last tiles of a block of many rows may overlap the ones before: the
// same sums are computed twice, which costs less than shaping the tiles anew.
#pragma once
#include <type_traits>

#include "kernels/linear/linear.h"
#include "kernels/native/amx.h"

#ifdef TOKENBUS_TILES

namespace tokenbus {

constexpr int kTileRows = 16, kTileBytes = 64;
constexpr int kRowBytes = kPanel * 4;  // of a panel's words, and of sums
constexpr int kStepBytes = kTileBytes / 4 * kRowBytes;

// Adds the products of 64 bytes of inputs of one row block, or of two, `stride` bytes from row to row. Tiles has the
// instructions, multiply_first() and multiply_second(): their operands are literals.
template <class Tiles, bool kTwo>
static inline void tiles_step(const uint8_t* first, const uint8_t* second, size_t stride, const uint8_t* weights) {
  _tile_loadd(4, first, stride);
  _tile_loadd(6, weights, kRowBytes);
  _tile_loadd(7, weights + kTileBytes, kRowBytes);
  Tiles::multiply_first();
  if constexpr (kTwo) {
    _tile_loadd(5, second, stride);
    Tiles::multiply_second();
  }
}

template <bool kTwo>
static inline void tiles_zero() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// first, second: [rows][32], of four bytes.
template <bool kTwo, class Sum>
static inline void tiles_store(Sum* first, Sum* second) {
  _tile_stored(0, first, kRowBytes);
  _tile_stored(1, first + 16, kRowBytes);
  if constexpr (kTwo) {
    _tile_stored(2, second, kRowBytes);
    _tile_stored(3, second + 16, kRowBytes);
  }
}

// The last `bytes` of the rows' inputs, fewer than a tile's: zeros fill them up, so that the tiles keep their shape.
template <class Tiles, bool kTwo>
static void tiles_last_step(const uint8_t* first, const uint8_t* second, size_t stride, const uint8_t* weights,
                            int num_rows, int bytes) {
  alignas(64) uint8_t inputs[2][kTileRows][kTileBytes] = {}, padded[kStepBytes] = {};
  for (int row = 0; row < num_rows; row++) {
    memcpy(inputs[0][row], first + row * stride, bytes);
    if (kTwo) memcpy(inputs[1][row], second + row * stride, bytes);
  }
  memcpy(padded, weights, static_cast<size_t>(bytes) * kPanel);
  asm volatile("" ::: "memory");  // g++ does not know that a tile's load reads memory
  tiles_step<Tiles, kTwo>(inputs[0][0], inputs[1][0], kTileBytes, padded);
}

// Calls block(first, second, size, two) with row blocks of `size` rows that cover all num_rows: both, if two is true.
template <class Block>
static inline void for_tile_blocks(int num_rows, Block&& block) {
  const int size = num_rows < kTileRows ? num_rows : kTileRows, last = num_rows - size;
  configure_tiles(size);
  for (int row = 0; row < num_rows; row += 2 * kTileRows) {
    if (row >= last)
      block(last, last, size, std::false_type());
    else
      block(row, row + size < last ? row + size : last, size, std::true_type());
  }
}

}  // namespace tokenbus

#endif
