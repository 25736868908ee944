// The likeliest token of each row, found while the logits pass by: they are never stored.
//
// Every thread keeps, for each row and each of a panel's 32 columns, the largest logit it has met and its panel. Threads
// take panels in rising order, so the first of equals has the lowest id. At the end all lanes of all threads are merged.
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
    const i32x16 is_larger = first > best.value[0], is_larger_too = second > best.value[1];
    best.value[0] = is_larger ? first : best.value[0];
    best.panel[0] = is_larger ? i32x16{} + panel : best.panel[0];
    best.value[1] = is_larger_too ? second : best.value[1];
    best.panel[1] = is_larger_too ? i32x16{} + panel : best.panel[1];
    best.check += (first + second) * 0.0f;
  }

  // Of what the first num_threads have seen of a row: the token, or -1 if some logit was not a finite number. The others
  // slept through this step: what they hold is of an earlier one.
  static int32_t merge(const std::vector<Likeliest>& threads, int num_threads, int row) {
    float largest = -std::numeric_limits<float>::infinity();
    int32_t token = std::numeric_limits<int32_t>::max();
    f32x16 check = {};
    for (int thread = 0; thread < num_threads; thread++) {
      const Row& best = threads[thread].rows_[row];
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
  std::vector<Row> rows_;
};

}  // namespace tokenbus
