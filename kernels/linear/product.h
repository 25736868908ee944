// A product: its input quantised if need be, its tasks shared by the team, its sums used while they are hot.
#pragma once
#include <algorithm>

#include "kernels/linear/panel.h"
#include "kernels/linear/quantize.h"
#include "kernels/native/team.h"

namespace tokenbus {

// By every member of a run: use(row, panel, first, second) once for each row and panel of input times the weights,
// bias included; input: its values [num_rows][n_in], and room for them quantised.
template <class Use>
void product(Member& member, const Linear& linear, const Rows& input, int num_rows, Use&& use) {
  if (linear.encoding != kBf16) member.share(num_rows, [&](int row) { quantize_row(linear, input, row); });
  const int chunks = (num_rows + kTaskRows - 1) / kTaskRows;
  const auto first_row = [&](int chunk) { return num_rows * chunk / chunks; };
  alignas(64) float sums[kTaskRows * kPanel];
  const auto compute = [&](int task) {
    const int chunk = task % chunks;
    compute_panel(linear, input, first_row(chunk), first_row(chunk + 1), task / chunks, sums);
  };
  const auto commit = [&](int task) {
    const int panel = task / chunks, first = first_row(task % chunks), last = first_row(task % chunks + 1);
    f32x16 bias[2] = {};
    if (linear.bias != nullptr) {
      bias[0] = load<f32x16>(linear.bias + panel * kPanel);
      bias[1] = load<f32x16>(linear.bias + panel * kPanel + 16);
    }
    for (int row = first; row < last; row++) {
      const float* of_row = sums + (row - first) * kPanel;
      use(row, panel, load<f32x16>(of_row) + bias[0], load<f32x16>(of_row + 16) + bias[1]);
    }
  };
  member.share(linear.panels() * chunks, compute, commit);
}

// The first `count` of a panel's 32 columns.
static inline void store_columns(float* to, int count, f32x16 first, f32x16 second) {
  memcpy(to, &first, std::min(count, 16) * sizeof(float));
  if (count > 16) memcpy(to + 16, &second, (count - 16) * sizeof(float));
}

}  // namespace tokenbus
