#include "kernels/linear/panel.h"

#include "kernels/linear/bf16.h"
#include "kernels/linear/bf16_amx.h"
#include "kernels/linear/blocks.h"
#include "kernels/linear/int8.h"
#include "kernels/linear/int8_amx.h"

namespace tokenbus {

void compute_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
#ifdef TOKENBUS_TILES
  if (tiles_allowed()) {
    if (linear.encoding == kBf16) return bf16_tiles(linear, rows, first_row, last_row, panel, sums);
    if (linear.encoding == kInt8 && last_row - first_row >= kInt8TileRows)
      return int8_tiles(linear, rows, first_row, last_row, panel, sums);
  }
#endif
  switch (linear.encoding) {
    case kBf16: return bf16_panel(linear, rows, first_row, last_row, panel, sums);
    case kInt8: return int8_panel(linear, rows, first_row, last_row, panel, sums);
    case kQ4: return q4_panel(linear, rows, first_row, last_row, panel, sums);
    case kQ8: return q8_panel(linear, rows, first_row, last_row, panel, sums);
  }
}

}  // namespace tokenbus
