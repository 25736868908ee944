// A model with its threads and its memory, ready for steps.
#pragma once
#include <map>
#include <vector>

#include "kernels/decoder/decoder.h"
#include "kernels/decoder/likeliest.h"
#include "kernels/decoder/workspace.h"
#include "kernels/native/team.h"
#include "kernels/paged_attention/attention.h"

namespace tokenbus {

struct Engine {
  Engine(const Decoder& decoder, int num_threads);

  // One step, whole.
  void run(const Step& step);

  // How the step's attention is cut into tasks; before attend, and before run's threads begin.
  void plan(const Step& step);

  // By every member of a run: one layer's attention, from the workspace's heads to its attended.
  void attend(int layer, Member& member);

  // A layer's keys; its values follow them.
  bf16* keys(int layer) const { return decoder.kv_cache + 2 * half_layer() * layer; }
  bf16* values(int layer) const { return keys(layer) + half_layer(); }
  int heads_width() const { return (decoder.num_heads + 2 * decoder.num_kv_heads) * decoder.head_dim; }

  const Decoder decoder;
  const CacheShape cache_shape;
  Team team;
  Workspace workspace;
  std::vector<Likeliest> likeliest;    // what each thread has found
  std::map<int, AttentionPlan> plans;  // by sliding window

 private:
  size_t half_layer() const {
    return static_cast<size_t>(decoder.num_blocks) * decoder.block_size * decoder.num_kv_heads * decoder.head_dim;
  }
};

}  // namespace tokenbus
