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

  void run(const Step& step);

  const Decoder decoder;
  const CacheShape cache_shape;
  Team team;
  Workspace workspace;
  std::vector<Likeliest> likeliest;    // what each thread has found
  std::map<int, AttentionPlan> plans;  // by sliding window
};

}  // namespace tokenbus
