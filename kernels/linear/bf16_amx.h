// bfloat16 products on tiles, whatever the number of rows.
//
// A single row too, since TDPBF16PS adds in an order that VDPBF16PS does not have, and a row's sums must not depend on
// how many others there are: for every 32 inputs the products of the even ones and of the odd ones are added up apart,
// then both, then that to the sum so far. By Intel's figures (a product every 16 cycles, done after 52) one row gets
// through 2 KB of weights in 52 cycles, more than a core gets from memory. That, and how far ahead to fetch, is still to
// be measured on a machine with tiles.
#pragma once
#include "kernels/linear/amx.h"

#ifdef TOKENBUS_TILES

namespace tokenbus {

struct Bf16Tiles {
  static inline void multiply_first() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  static inline void multiply_second() {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

// sums: [last_row - first_row][32], like compute_panel's.
static inline void bf16_tiles(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                              float* sums) {
  const size_t stride = 2 * static_cast<size_t>(linear.n_in);
  const uint8_t* inputs = reinterpret_cast<const uint8_t*>(rows.values) + first_row * stride;
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + panel * stride * kPanel;
  const int steps = static_cast<int>(stride / kTileBytes), rest = stride % kTileBytes;
  for_tile_blocks(last_row - first_row, [=](int first, int second, int size, auto two) {
    const uint8_t *a = inputs + first * stride, *b = inputs + second * stride, *step_weights = weights;
    tiles_zero<two>();
    for (int step = 0; step < steps; step++, step_weights += kStepBytes) {
      fetch_ahead<kStepBytes>(step_weights);
      tiles_step<Bf16Tiles, two>(a + step * kTileBytes, b + step * kTileBytes, stride, step_weights);
    }
    if (rest != 0)
      tiles_last_step<Bf16Tiles, two>(a + stride - rest, b + stride - rest, stride, step_weights, size, rest);
    tiles_store<two>(sums + first * kPanel, sums + second * kPanel);
  });
}

}  // namespace tokenbus

#endif
