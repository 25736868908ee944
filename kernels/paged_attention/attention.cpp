#include "kernels/paged_attention/attention.h"

#include <atomic>

#include "kernels/native/team.h"
#include "kernels/paged_attention/task_run.h"

namespace tokenbus {

void attend_task(AttentionPlan& plan, const AttentionLayer& layer, int index, int member) {
  const int num_kv_heads = plan.shape_.cache.num_kv_heads, head_dim = plan.shape_.cache.head_dim;
  const AttentionTask& task = plan.tasks_[index / num_kv_heads];
  const int kv_head = index % num_kv_heads;
  AttentionScratch& scratch = *plan.scratch_[member];
  TaskRun run(plan.shape_, plan.step_, layer, task, kv_head, scratch);
  const int num_rows = run.num_rows();
  const RowStates states = RowStates::at(scratch.states.data(), num_rows, head_dim);
  if (task.split < 0) {
    states.clear(num_rows, head_dim);
    for (int part = task.first_part; part < task.last_part; part++) run.attend_part(part, states);
    run.write(states);
    return;
  }
  AttentionSplit& split = plan.splits_[task.split + kv_head];
  const size_t registers = RowStates::registers(num_rows, head_dim);
  f32x16* const memory = plan.split_states_.data() + split.states;
  for (int part = task.first_part; part < task.last_part; part++) {
    const RowStates own = RowStates::at(memory + (part - split.first_part) * registers, num_rows, head_dim);
    own.clear(num_rows, head_dim);
    run.attend_part(part, own);
  }
  std::atomic_ref<int32_t> num_finished(split.num_finished);
  if (num_finished.fetch_add(1, std::memory_order_acq_rel) + 1 < split.num_tasks) return;
  num_finished.store(0, std::memory_order_relaxed);  // for the next layer, which begins after a barrier
  states.clear(num_rows, head_dim);
  for (int part = split.first_part; part < split.last_part; part++)
    merge_states(states, RowStates::at(memory + (part - split.first_part) * registers, num_rows, head_dim), num_rows,
                 head_dim);
  run.write(states);
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
  team->run([&](int member) {
    for (int layer = 0; layer < num_layers; layer++)
      team->share(plan->num_tasks(), [&](int task) { tokenbus::attend_task(*plan, layers[layer], task, member); });
  });
}

}
