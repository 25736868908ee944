// The rows of a task in blocks, as many rows each as the registers hold sums for.
#pragma once

namespace tokenbus {

// row: the block's first, counted from the task's first.
struct RowBlock {
  int index, row, num_rows;
  bool is_only;
};

// The fewest blocks of at most max_rows rows, of nearly one size: 13 rows as 12 and 1 would take as many passes over the
// weights as 7 and 6, the second one for a single row. The visitor needs __attribute__((always_inline)): what it calls
// for each number of rows is to be seen by g++ here.
template <class Visit>
[[gnu::always_inline]] static inline void for_each_block(int num_rows, int max_rows, Visit visit) {
  const int num_blocks = (num_rows + max_rows - 1) / max_rows;
  for (int index = 0, row = 0; index < num_blocks; index++) {
    const int left = num_blocks - index, size = (num_rows - row + left - 1) / left;
    visit(RowBlock{index, row, size, num_blocks == 1});
    row += size;
  }
}

}  // namespace tokenbus
