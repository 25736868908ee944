// A product on its own, with float sums: for tests and measurements.
#include "kernels/linear/product.h"

#include <algorithm>
#include <vector>

#include "kernels/linear/embedding.h"

namespace tokenbus {

namespace {

// Memory for quantised rows of num_values in all.
struct QuantizedRows {
  QuantizedRows(const bf16* values, size_t num_values)
      : codes(num_values),
        scales(num_values / kBlock),
        sums(scales.size()),
        rows{values, codes.data(), scales.data(), sums.data()} {}

  std::vector<uint8_t> codes;
  std::vector<float> scales, sums;
  Rows rows;
};

// By every member of a run.
void multiply(Member& member, const Linear& linear, const Rows& rows, int num_rows, float* out) {
  product(member, linear, rows, num_rows, [&](int row, int panel, f32x16 a, f32x16 b) {
    const int column = panel * kPanel, count = std::min(kPanel, linear.n_out - column);
    store_columns(out + static_cast<size_t>(row) * linear.n_out + column, count, a, b);
  });
}

}  // namespace

}  // namespace tokenbus

extern "C" {

// Products one after the other. values: bfloat16 [num_rows][n_in]. out: float32 [num_rows][n_out], bias included; of
// several products, each overwrites the one before.
void tokenbus_linear(tokenbus::Team* team, const tokenbus::Linear* linears, int num_linears, const bf16* values,
                     int num_rows, float* out) {
  int n_in = 0;
  for (int index = 0; index < num_linears; index++) n_in = std::max(n_in, linears[index].n_in);
  const tokenbus::QuantizedRows memory(values, static_cast<size_t>(num_rows) * n_in);
  team->run([&](tokenbus::Member& member) {
    for (int index = 0; index < num_linears; index++)
      tokenbus::multiply(member, linears[index], memory.rows, num_rows, out);
  });
}

// The input of tokenbus_linear as its encoding reads it: codes [num_rows][n_in], scales and sums [num_rows][groups].
void tokenbus_quantize(const tokenbus::Linear* linear, const bf16* values, int num_rows, uint8_t* codes, float* scales,
                       float* sums) {
  for (int row = 0; row < num_rows; row++) tokenbus::quantize_row(*linear, {values, codes, scales, sums}, row);
}

// out: float32 [num_ids][n_in], the weights of these output columns.
void tokenbus_embed(const tokenbus::Linear* linear, const int32_t* ids, int num_ids, float* out) {
  for (int index = 0; index < num_ids; index++)
    tokenbus::embed_row(*linear, ids[index], out + static_cast<size_t>(index) * linear->n_in);
}
}
