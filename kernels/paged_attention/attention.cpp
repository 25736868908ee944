#include "kernels/paged_attention/attention.h"

#include <algorithm>
#include <atomic>

#include "kernels/paged_attention/task_run.h"

namespace tokenbus {

// The states of a task's rows, or of each of its parts, are computed in the scratch memory.
void AttentionPlan::compute(const AttentionLayer& layer, int index, AttentionScratch& scratch) const {
  const AttentionTask& task = tasks_[index / shape_.cache.num_kv_heads];
  TaskRun run(shape_, step_, layer, task, index % shape_.cache.num_kv_heads, scratch);
  const int num_rows = run.num_rows(), head_dim = shape_.cache.head_dim;
  const size_t registers = task.split < 0 ? 0 : RowStates::registers(num_rows, head_dim);
  for (int part = task.first_part; part < task.last_part; part++) {
    const int offset = part - task.first_part;
    const RowStates states = RowStates::at(scratch.states.data() + offset * registers, num_rows, head_dim);
    if (offset == 0 || task.split >= 0) states.clear(num_rows, head_dim);
    run.attend_part(part, states);
  }
}

// The rows' outputs are written, or the parts' states kept until the last of the rows' tasks merges them.
void AttentionPlan::commit(const AttentionLayer& layer, int index, AttentionScratch& scratch) {
  const int num_kv_heads = shape_.cache.num_kv_heads, head_dim = shape_.cache.head_dim;
  const AttentionTask& task = tasks_[index / num_kv_heads];
  const int kv_head = index % num_kv_heads;
  const TaskRun run(shape_, step_, layer, task, kv_head, scratch);
  const int num_rows = run.num_rows();
  const RowStates states = RowStates::at(scratch.states.data(), num_rows, head_dim);
  if (task.split < 0) return run.write(states);
  AttentionSplit& split = splits_[task.split + kv_head];
  const size_t registers = RowStates::registers(num_rows, head_dim);
  f32x16* const memory = split_states_.data() + split.states;
  std::copy_n(scratch.states.data(), (task.last_part - task.first_part) * registers,
              memory + (task.first_part - split.first_part) * registers);
  std::atomic_ref<int32_t> num_finished(split.num_finished);
  if (num_finished.fetch_add(1, std::memory_order_acq_rel) + 1 < split.num_tasks) return;
  num_finished.store(0, std::memory_order_relaxed);  // for the next layer, which begins when this one's tasks are done
  states.clear(num_rows, head_dim);
  for (int part = split.first_part; part < split.last_part; part++)
    merge_states(states, RowStates::at(memory + (part - split.first_part) * registers, num_rows, head_dim), num_rows,
                 head_dim);
  run.write(states);
}

void share_attention(AttentionPlan& plan, const AttentionLayer& layer, Member& member) {
  AttentionScratch& scratch = *plan.scratch_[member.index()];
  member.share(
      plan.num_tasks(), [&](int task) { plan.compute(layer, task, scratch); },
      [&](int task) { plan.commit(layer, task, scratch); });
}

}  // namespace tokenbus

extern "C" {

tokenbus::AttentionPlan* tokenbus_attention_plan_new() { return new tokenbus::AttentionPlan; }
void tokenbus_attention_plan_delete(tokenbus::AttentionPlan* plan) { delete plan; }

void tokenbus_attention_plan_make(tokenbus::AttentionPlan* plan, const tokenbus::AttentionShape* shape,
                                  const tokenbus::AttentionStep* step, int num_threads) {
  plan->make(*shape, *step, num_threads);
}

int tokenbus_attention_plan_num_tasks(const tokenbus::AttentionPlan* plan) { return plan->num_tasks(); }

// num_layers layers one after another, for tests and benchmarks. The plan must be made for the team's size.
void tokenbus_paged_attention(tokenbus::Team* team, tokenbus::AttentionPlan* plan,
                              const tokenbus::AttentionLayer* layers, int num_layers) {
  team->run([&](tokenbus::Member& member) {
    for (int layer = 0; layer < num_layers; layer++) tokenbus::share_attention(*plan, layers[layer], member);
  });
}

}
