// The likeliest token of each row, found while the logits pass by: they are never stored.
//
// Every thread keeps, for each row and each of a panel's 32 columns, the largest logit it has met and its panel, of equal
// ones the lowest. At the end all lanes of all threads are merged.
#pragma once
#include <limits>
#include <vector>

#include "kernels/linear/linear.h"

namespace tokenbus {

class Likeliest {
 public:
  explicit Likeliest(int max_num_rows) : rows_(max_num_rows) {}

  void clear(int num_rows) {
    for (int row = 0; row < num_rows; row++) rows_[row] = Row{};
  }

  void see(int row, int panel, f32x16 first, f32x16 second) {
    Row& best = rows_[row];
    see_half(best, 0, panel, first);
    see_half(best, 1, panel, second);
    best.check += (first + second) * 0.0f;
  }

  // Of what all threads have seen of a row: the token, or -1 if some logit was not a finite number.
  static int32_t merge(const std::vector<Likeliest>& threads, int row) {
    float largest = -std::numeric_limits<float>::infinity();
    int32_t token = std::numeric_limits<int32_t>::max();
    f32x16 check = {};
    for (const Likeliest& thread : threads) {
      const Row& best = thread.rows_[row];
      check += best.check;
      for (int lane = 0; lane < kPanel; lane++) {
        const float value = best.value[lane / 16][lane % 16];
        const int32_t candidate = best.panel[lane / 16][lane % 16] * kPanel + lane;
        if (value > largest || (value == largest && candidate < token)) largest = value, token = candidate;
      }
    }
    return sum_of(check) == 0.0f ? token : -1;
  }

 private:
  struct Row {
    f32x16 value[2] = {broadcast(-std::numeric_limits<float>::infinity()),
                       broadcast(-std::numeric_limits<float>::infinity())};
    i32x16 panel[2] = {};
    f32x16 check = {};  // stays 0 as long as all logits are finite
  };

  static void see_half(Row& best, int half, int panel, f32x16 values) {
    const i32x16 wins = (values > best.value[half]) | ((values == best.value[half]) & (panel < best.panel[half]));
    best.value[half] = choose(wins, values, best.value[half]);
    best.panel[half] = choose(wins, i32x16{} + panel, best.panel[half]);
  }

  std::vector<Row> rows_;
};

}  // namespace tokenbus
