// One task of one layer: finds the tiles, forms blocks of rows, writes the outputs.
#pragma once
#include <algorithm>

#include "kernels/paged_attention/attend_rows.h"

namespace tokenbus {

class TaskRun {
 public:
  TaskRun(const AttentionShape& shape, const AttentionStep& step, const AttentionLayer& layer, const AttentionTask& task,
          int kv_head, AttentionScratch& scratch)
      : shape_(shape), layer_(layer), scratch_(scratch), kv_head_(kv_head), group_(shape.heads_per_group()),
        head_dim_(shape.cache.head_dim), scale_(shape.scale * kLog2E), last_part_(task.last_part),
        num_rows_((task.last_query - task.first_query) * group_),
        table_(step.block_tables + static_cast<size_t>(task.sequence) * step.table_stride) {
    const int first = step.cu_seqlens_q[task.sequence], last = step.cu_seqlens_q[task.sequence + 1];
    context_len_ = step.context_lens[task.sequence];
    first_position_ = context_len_ - (last - first) + task.first_query;
    first_token_ = first + task.first_query;
  }

  int num_rows() const { return num_rows_; }

  // Merges a part into the rows' states.
  void attend_part(int part, const RowStates& states) {
    find_tiles(part);
    const int num_blocks = (num_rows_ + kBlockRows - 1) / kBlockRows;
    for (int block = 0, row = 0; block < num_blocks; block++) {
      const int count = (num_rows_ - row + num_blocks - block - 1) / (num_blocks - block);  // nearly equal blocks
      if (see(part, row, count)) {
        for (int r = 0; r < count; r++) set_row(scratch_.queries[r], query(row + r), head_dim_);
        kAttendRows[count - 1](rows_, head_dim_, scale_, scratch_, states.from(row, head_dim_));
      }
      row += count;
    }
  }

  void write(const RowStates& states) const {
    for (int row = 0; row < num_rows_; row++) {
      const float inverse = 1.0f / sum_of(states.sums[row]);
      const float* sums = states.outputs + static_cast<size_t>(row) * head_dim_;
      bf16* output = layer_.output + token(row) * layer_.output_stride + head_offset(row);
      for (int d = 0; d < head_dim_; d += 16) store_bf16(output + d, load<f32x16>(sums + d) * inverse);
    }
  }

 private:
  int64_t token(int row) const { return first_token_ + row / group_; }
  int head_offset(int row) const { return (kv_head_ * group_ + row % group_) * head_dim_; }
  const bf16* query(int row) const { return layer_.query + token(row) * layer_.query_stride + head_offset(row); }

  // Where the part's tiles are, and the next part's first ones.
  void find_tiles(int part) {
    const int first = part * kPartTokens;
    const int last = std::min(last_part_ * kPartTokens, context_len_), count = kPartTiles + kTilesAhead;
    int block = first / shape_.cache.block_size, offset = first % shape_.cache.block_size;
    size_t element = 0;
    for (int tile = 0; tile < count; tile++) {
      if (first + tile * kTileTokens < last) element = shape_.cache.tile(table_[block], kv_head_, offset);
      tiles_[tile] = element;
      offset += kTileTokens;
      if (offset == shape_.cache.block_size) block++, offset = 0;
    }
  }

  // Fills rows_; false if the rows see nothing of the part.
  bool see(int part, int row, int count) {
    const int start = part * kPartTokens;
    for (int r = 0; r < count; r++) {
      const int position = first_position_ + (row + r) / group_ - start;
      const int oldest = shape_.sliding_window > 0 ? position - shape_.sliding_window + 1 : 0;
      rows_.begin[r] = std::clamp(oldest, 0, kPartTokens);
      rows_.end[r] = std::clamp(position + 1, 0, kPartTokens);
    }
    // Later rows are of the same or later positions.
    rows_.common_begin = rows_.begin[count - 1];
    rows_.common_end = rows_.end[0];
    rows_.seen_end = rows_.end[count - 1];
    if (rows_.begin[0] >= rows_.seen_end) return false;
    rows_.first_tile = rows_.begin[0] / kTileTokens;
    rows_.last_tile = (rows_.seen_end + kTileTokens - 1) / kTileTokens;
    const bf16** stream = rows_.stream;
    for (int tile = rows_.first_tile; tile < rows_.last_tile; tile++) *stream++ = layer_.key_cache + tiles_[tile];
    for (int tile = rows_.first_tile; tile < rows_.last_tile; tile++) *stream++ = layer_.value_cache + tiles_[tile];
    for (int tile = kPartTiles; tile < kPartTiles + kTilesAhead; tile++) *stream++ = layer_.key_cache + tiles_[tile];
    return true;
  }

  const AttentionShape& shape_;
  const AttentionLayer& layer_;
  AttentionScratch& scratch_;
  const int kv_head_, group_, head_dim_;
  const float scale_;
  const int last_part_, num_rows_;
  const int32_t* table_;
  int context_len_, first_position_;
  int64_t first_token_;
  size_t tiles_[kPartTiles + kTilesAhead];
  PartRows rows_;
};

}  // namespace tokenbus
