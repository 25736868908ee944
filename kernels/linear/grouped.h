// Products whose inputs have a scale for every group of values: exact integers within a group, added up in float.
//
// A Format says how a panel looks (int8.h, blocks.h): kInputs of a group, kBytes of it, Codes (bytes.h) and where they
// are followed by what; kTailBytes after the last group; Scales, which adds a group's dot product to a sum, and finish.
// kBlockRows rows keep their sums in registers while a panel passes by once; kFetchedFor: from how many rows on a panel
// is asked for ahead.
#pragma once
#include <algorithm>

#include "kernels/linear/bytes.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/row_blocks.h"

namespace tokenbus {

template <class Format>
constexpr size_t panel_bytes(int n_in) {
  return static_cast<size_t>(n_in / Format::kInputs) * Format::kBytes + Format::kTailBytes;
}

// Rows as a block sees them: its first row's codes, scales and sums, and how far it is to the next row's.
struct BlockRows {
  const uint8_t* codes;
  const float *scales, *sums;
  int n_in, num_groups;
};

// out: [kRows][32], of which kVectors registers' columns are written, from first_column on.
template <class Format, int kRows, int kVectors, bool kIsOnly>
static inline void grouped_strip(const uint8_t* panel, int first_column, BlockRows rows, const uint8_t* next, float* out) {
  Floats sums[kRows][kVectors] = {};
  for (int group = 0; group < rows.num_groups; group++, panel += Format::kBytes, rows.codes += Format::kInputs) {
    if constexpr (!kIsOnly)
      fetch<Format::kBytes / 2>(next + group * (Format::kBytes / 2));
    else if (kRows >= Format::kFetchedFor && first_column == 0)
      fetch_ahead<Format::kBytes>(panel);
    Ints dots[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) dots[r][v] = Format::Codes::start(rows.sums[r * rows.num_groups + group]);
    Format::Codes::template for_each_step<Format::kInputs, kVectors>(
        panel + 4 * first_column, [&](int k, const typename Format::Codes::Weights* weights) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; r++) {
            const Ints four = four_of(rows.codes + static_cast<size_t>(r) * rows.n_in + k);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) dots[r][v] = Format::Codes::multiply(dots[r][v], weights[v], four);
          }
        });
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const typename Format::Scales scales(panel, first_column + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const int at = r * rows.num_groups + group;
        const Floats dot = __builtin_convertvector(Format::Codes::finish(dots[r][v]), Floats);
        sums[r][v] = scales.add(sums[r][v], dot, rows.scales[at], rows.sums[at]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const int column = first_column + v * kLanes;
      store(out + r * kPanel + column, Format::finish(sums[r][v], panel, column));
    }
}

// sums: [kRows][32].
template <class Format, int kRows, bool kIsOnly>
static inline void grouped_block(const uint8_t* panel, const Rows& rows, int n_in, int row, const uint8_t* next, float* sums) {
  // AVX2 has half the registers of half the size: only one or two rows take the whole panel at once.
  constexpr int kVectors = kPanel / kLanes == 2 || kRows <= 2 ? kPanel / kLanes : 2;
  const size_t num_groups = n_in / Format::kInputs;
  const BlockRows block{rows.codes + static_cast<size_t>(row) * n_in, rows.scales + row * num_groups,
                        rows.sums + row * num_groups, n_in, static_cast<int>(num_groups)};
  for (int column = 0; column < kPanel; column += kVectors * kLanes)
    grouped_strip<Format, kRows, kVectors, kIsOnly>(panel, column, block, next, sums);
}

template <class Format, int kRows, bool kIsOnly>
static void grouped_rest(const uint8_t* panel, const Rows& rows, int n_in, int row, int count, const uint8_t* next,
                         float* sums) {
  if (count == kRows)
    grouped_block<Format, kRows, kIsOnly>(panel, rows, n_in, row, next, sums);
  else if constexpr (kRows > 1)
    grouped_rest<Format, kRows - 1, kIsOnly>(panel, rows, n_in, row, count, next, sums);
}

// sums: [last_row - first_row][32], like compute_panel's.
template <class Format>
static void grouped_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                          float* sums) {
  const size_t bytes = panel_bytes<Format>(linear.n_in);
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + panel * bytes;
  for_each_block(last_row - first_row, Format::kBlockRows, [&](RowBlock block) __attribute__((always_inline)) {
    const int row = first_row + block.row;
    float* block_sums = sums + block.row * kPanel;
    if (block.is_only)
      grouped_rest<Format, Format::kBlockRows, true>(weights, rows, linear.n_in, row, block.num_rows, nullptr, block_sums);
    else
      grouped_rest<Format, Format::kBlockRows, false>(weights, rows, linear.n_in, row, block.num_rows,
                                                      weights + bytes + std::min(block.index, 1) * bytes / 2, block_sums);
  });
}

// The weights of one column, [n_in]: a token's embedding, where the embedding and the head are one matrix.
template <class Format>
static void grouped_column(const Linear& linear, int column, float* out) {
  const size_t bytes = panel_bytes<Format>(linear.n_in);
  const uint8_t* panel = static_cast<const uint8_t*>(linear.weight) + column / kPanel * bytes;
  const uint8_t* tail = panel + bytes - Format::kTailBytes;
  for (int start = 0; start < linear.n_in; start += Format::kInputs, panel += Format::kBytes)
    for (int input = 0; input < Format::kInputs; input++)
      out[start + input] = Format::weight(panel, tail, column % kPanel, input);
}

}  // namespace tokenbus
