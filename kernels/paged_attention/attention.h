// Attention of a step's queries over the packed cache: decode and chunks of prompts alike, in tasks for a Team.
//
//     plan.make(shape, step, team.size());        // once a step
//     share_attention(plan, layer, member);       // in every layer, by every member of a run
//
// All rows (one query of one head) that share a kv head are computed together, a block at a time, whether they are the
// heads of one query or of many. The keys are taken in parts of 256, counted from the sequence's first token. Within a
// part a row's scores, their greatest and their weights relative to that are computed, and the weighted sum of the
// values; then the part is merged into the row's state (greatest score, sum of weights, output), each rescaled to the
// greater of the two greatest (the online softmax of Milakov and Gimelshein, 2018; in blocks as in Dao et al.,
// "FlashAttention", 2022). Weights are rounded to bf16 for the product, all sums are float32.
//
// What is invariant: a row's output is a function of its own query, its position and the keys and values it sees,
// bit for bit (but for the sign of a zero). Not of other sequences, the number of threads, how the work was cut into
// tasks, which block holds what, or how many queries of its sequence are computed in the same step. For parts begin
// at fixed positions, sums run in the order of positions, parts are merged in order whoever computed them, and keys that
// a row does not see weigh exactly 0.
//
// Slots at or beyond a sequence's context may hold anything. As keys they are read, but their scores are replaced; as
// values they are not used.
#pragma once
#include <memory>
#include <vector>

#include "kernels/native/simd.h"
#include "kernels/native/team.h"
#include "kernels/paged_attention/packed_cache.h"

namespace tokenbus {

constexpr int kPartTokens = 256;
constexpr int kPartTiles = kPartTokens / kTileTokens;
constexpr int kMaxHeadDim = 256;

struct AttentionShape {
  CacheShape cache;
  int32_t num_heads;       // a multiple of cache.num_kv_heads
  int32_t sliding_window;  // tokens a query sees, itself included; 0 for all
  float scale;             // of the scores, above 0

  int heads_per_group() const { return num_heads / cache.num_kv_heads; }
};

// What the batch is. The arrays must live as long as the plan is used.
struct AttentionStep {
  int32_t num_sequences;        // S
  int32_t table_stride;         // int32s from one sequence's block table to the next
  const int32_t* cu_seqlens_q;  // [S + 1]: queries of sequence s are rows [s] to [s + 1] of the step
  const int32_t* context_lens;  // [S]: tokens in the cache, the queries' own included
  const int32_t* block_tables;  // [S, table_stride]
};

// What differs from layer to layer.
struct AttentionLayer {
  const bf16* query;  // row t's head h at query + t * query_stride + h * head_dim
  int64_t query_stride;
  const bf16* key_cache;  // the layer's, as packed_cache.h says
  const bf16* value_cache;
  bf16* output;  // as query
  int64_t output_stride;
};

// Some queries of one sequence, all heads of a group, over some of the parts. Every kv head has a task like this.
struct AttentionTask {
  int32_t sequence;
  int32_t first_query, last_query;  // counted within the sequence's queries
  int32_t first_part, last_part;
  int32_t split;  // -1, or where the kv heads' splits begin: the other parts are other tasks'
  float cost;     // rows * keys
};

// Rows whose parts are computed by several tasks: the last one to finish merges them.
struct AttentionSplit {
  int32_t first_part, last_part;
  int32_t num_tasks;
  int32_t num_finished;  // changed atomically; 0 again once merged
  size_t states;         // where the parts' states begin, in registers
};

struct AttentionScratch;

class AttentionPlan {
 public:
  AttentionPlan();
  ~AttentionPlan();
  AttentionPlan(const AttentionPlan&) = delete;

  // Lists the tasks of a step, the most costly first, and makes room for them: memory is allocated only for steps
  // larger than any before. num_threads: of the team.
  void make(const AttentionShape& shape, const AttentionStep& step, int num_threads);

  int num_tasks() const { return static_cast<int>(tasks_.size()) * shape_.cache.num_kv_heads; }

 private:
  friend void share_attention(AttentionPlan& plan, const AttentionLayer& layer, Member& member);

  void compute(const AttentionLayer& layer, int index, AttentionScratch& scratch) const;
  void commit(const AttentionLayer& layer, int index, AttentionScratch& scratch);

  float cost(int sequence, int first_query, int last_query) const;
  int first_position(int sequence) const;
  void add_sequence(int sequence, float target);
  void add_queries(int sequence, int first_query, int last_query, float target);

  AttentionShape shape_{};
  AttentionStep step_{};
  std::vector<AttentionTask> tasks_;    // task index is tasks_[index / num_kv_heads] of kv head index % num_kv_heads
  std::vector<AttentionSplit> splits_;
  std::vector<f32x16> split_states_;
  size_t num_split_registers_ = 0;
  size_t max_task_registers_ = 0;  // of the states that a task computes
  std::vector<std::unique_ptr<AttentionScratch>> scratch_;  // one for each member
};

// A layer's attention, by every member of a run: a phase.
void share_attention(AttentionPlan& plan, const AttentionLayer& layer, Member& member);

}  // namespace tokenbus
