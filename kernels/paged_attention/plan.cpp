// How a step's attention is cut into tasks. Nothing of this changes a result, only who computes it and when.
#include <algorithm>

#include "kernels/paged_attention/attention.h"
#include "kernels/paged_attention/products.h"
#include "kernels/paged_attention/row_state.h"

namespace tokenbus {
namespace {

constexpr int kTasksPerThread = 4;      // enough that the last one does not keep the others waiting for long
constexpr float kLeastCost = 1536;      // of a task that is cut off, in rows * keys: about a microsecond's work
constexpr int kMostRows = 8 * kBlockRows;  // of a task: their outputs and a part's keys and values stay in the cache
constexpr float kKeysPerRow = 32;       // what a row costs besides its keys

// Keys that the queries [first, last) of a sequence see together; position is the first one's.
float keys_seen(int position, int num_queries, int sliding_window) {
  const auto seen = [&](int at) { return sliding_window > 0 ? std::min(at + 1, sliding_window) : at + 1; };
  return 0.5f * static_cast<float>(num_queries) *
         (static_cast<float>(seen(position)) + static_cast<float>(seen(position + num_queries - 1)));
}

}  // namespace

AttentionPlan::AttentionPlan() = default;
AttentionPlan::~AttentionPlan() = default;

void AttentionPlan::make(const AttentionShape& shape, const AttentionStep& step, int num_threads) {
  shape_ = shape;
  step_ = step;
  tasks_.clear();
  splits_.clear();
  num_split_registers_ = 0;
  max_task_registers_ = 0;
  float total = 0;
  for (int sequence = 0; sequence < step.num_sequences; sequence++) {
    const int num_queries = step.cu_seqlens_q[sequence + 1] - step.cu_seqlens_q[sequence];
    total += cost(sequence, 0, num_queries);
  }
  total *= static_cast<float>(shape.cache.num_kv_heads);
  const float target = std::max(kLeastCost, total / static_cast<float>(num_threads * kTasksPerThread));
  for (int sequence = 0; sequence < step.num_sequences; sequence++) add_sequence(sequence, target);
  std::sort(tasks_.begin(), tasks_.end(),
            [](const AttentionTask& a, const AttentionTask& b) { return a.cost > b.cost; });

  while (scratch_.size() < static_cast<size_t>(num_threads)) scratch_.push_back(std::make_unique<AttentionScratch>());
  for (auto& scratch : scratch_)
    if (scratch->states.size() < max_task_registers_) scratch->states.resize(max_task_registers_);
  if (split_states_.size() < num_split_registers_) split_states_.resize(num_split_registers_);
}

float AttentionPlan::cost(int sequence, int first_query, int last_query) const {
  const int num_queries = last_query - first_query;
  const int position = first_position(sequence) + first_query;
  return static_cast<float>(shape_.heads_per_group()) *
         (keys_seen(position, num_queries, shape_.sliding_window) + kKeysPerRow * static_cast<float>(num_queries));
}

int AttentionPlan::first_position(int sequence) const {
  return step_.context_lens[sequence] - (step_.cu_seqlens_q[sequence + 1] - step_.cu_seqlens_q[sequence]);
}

void AttentionPlan::add_sequence(int sequence, float target) {
  const int num_queries = step_.cu_seqlens_q[sequence + 1] - step_.cu_seqlens_q[sequence];
  if (num_queries == 0) return;
  // Full blocks of rows for those who compute, but for the sake of idle threads fewer queries to a task.
  const int block = std::max(1, kBlockRows / shape_.heads_per_group());
  const int most = std::max(1, kMostRows / shape_.heads_per_group());
  const float last_cost = cost(sequence, num_queries - 1, num_queries);
  const int affordable = static_cast<int>(std::min(target / last_cost, static_cast<float>(most)));
  const int size = std::max(block, affordable / block * block);
  const int num_ranges = (num_queries + size - 1) / size;
  for (int range = 0; range < num_ranges; range++) {
    const int first = range * size;
    add_queries(sequence, first, std::min(first + size, num_queries), target);
  }
}

void AttentionPlan::add_queries(int sequence, int first_query, int last_query, float target) {
  const int position = first_position(sequence);
  const int window = shape_.sliding_window;
  const int oldest = window > 0 ? std::max(0, position + first_query - window + 1) : 0;
  const int first_part = oldest / kPartTokens, last_part = (position + last_query - 1) / kPartTokens + 1;
  const int num_parts = last_part - first_part, num_rows = (last_query - first_query) * shape_.heads_per_group();
  const float total = cost(sequence, first_query, last_query);
  const int affordable = std::max(1, static_cast<int>(target * static_cast<float>(num_parts) / total));
  const int num_tasks = (num_parts + affordable - 1) / affordable;
  const size_t registers = RowStates::registers(num_rows, shape_.cache.head_dim);
  const int parts_kept = num_tasks == 1 ? 1 : (num_parts + num_tasks - 1) / num_tasks;
  max_task_registers_ = std::max(max_task_registers_, registers * parts_kept);
  if (num_tasks == 1) {
    tasks_.push_back({sequence, first_query, last_query, first_part, last_part, -1, total});
    return;
  }
  const int split = static_cast<int>(splits_.size());
  for (int kv_head = 0; kv_head < shape_.cache.num_kv_heads; kv_head++) {
    splits_.push_back({first_part, last_part, num_tasks, 0, num_split_registers_});
    num_split_registers_ += registers * num_parts;
  }
  for (int task = 0; task < num_tasks; task++) {
    const int first = first_part + num_parts * task / num_tasks;
    const int last = first_part + num_parts * (task + 1) / num_tasks;
    const float share = static_cast<float>(last - first) / static_cast<float>(num_parts);
    tasks_.push_back({sequence, first_query, last_query, first, last, split, total * share});
  }
}

}  // namespace tokenbus
