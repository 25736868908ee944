// int8 products on tiles: each step is one group of 64 inputs, whose exact sums leave the tiles and are added up in float,
// in the order of grouped.h. So rows get the same sums here and there, and few of them may go there: from how many on
// tiles are faster is still to be measured on a machine that has them.
#pragma once
#include "kernels/linear/amx.h"
#include "kernels/linear/int8.h"

#ifdef TOKENBUS_TILES

namespace tokenbus {

constexpr int kInt8TileRows = 16;
static_assert(kInt8Group == kTileBytes, "one step is one group");

// Inputs are signed; weights have 128 on top, and no sign.
struct Int8Tiles {
  static inline void multiply_first() {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
  }
  static inline void multiply_second() {
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
};

// Adds a group's part to the sums of `count` rows. dots, sums: [count][32]. row_scales, row_sums: of the first row's
// group; those of the next row follow after num_groups.
static inline void int8_add_group(const int32_t* dots, const float* row_scales, const float* row_sums, int count,
                                  int num_groups, float* sums) {
  for (int r = 0; r < count; r++, row_scales += num_groups, row_sums += num_groups) {
    const Ints bias = Ints{} + 128 * static_cast<int32_t>(*row_sums);
    const Floats scale = Floats{} + *row_scales;
    for (int end = (r + 1) * kPanel, at = r * kPanel; at < end; at += kLanes)
      store(sums + at, fused(__builtin_convertvector(load<Ints>(dots + at) - bias, Floats), scale,
                             load<Floats>(sums + at)));
  }
}

// sums: [last_row - first_row][32], like compute_panel's.
static inline void int8_tiles(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                              float* sums) {
  const size_t stride = linear.n_in, num_groups = stride / kInt8Group;
  const uint8_t* inputs = rows.codes + first_row * stride;
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + panel * panel_bytes<Int8>(linear.n_in);
  const uint8_t* tail = weights + num_groups * kStepBytes;
  for_tile_blocks(last_row - first_row, [&](int first, int second, int size, auto two) {
    const int starts[2] = {first, second};
    alignas(64) int32_t dots[2][kTileRows * kPanel];
    alignas(64) float block[2][kTileRows * kPanel] = {};
    for (size_t group = 0; group < num_groups; group++) {
      const uint8_t* group_weights = weights + group * kStepBytes;
      fetch_ahead<kStepBytes>(group_weights);
      tiles_zero<two>();
      tiles_step<Int8Tiles, two>(inputs + first * stride + group * kTileBytes,
                                 inputs + second * stride + group * kTileBytes, stride, group_weights);
      tiles_store<two>(dots[0], dots[1]);
      for (int half = 0; half <= two; half++) {
        const size_t at = (first_row + starts[half]) * num_groups + group;
        int8_add_group(dots[half], rows.scales + at, rows.sums + at, size, static_cast<int>(num_groups), block[half]);
      }
    }
    for (int half = 0; half <= two; half++)
      for (int at = 0; at < size * kPanel; at += kLanes)
        store(sums + starts[half] * kPanel + at, Int8::finish(load<Floats>(block[half] + at), tail, at % kPanel));
  });
}

}  // namespace tokenbus

#endif
