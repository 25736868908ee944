// What test_team.py has a team do.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/native/team.h"

extern "C" {

// Each task of a phase adds up what two tasks of the phase before have left. A phase that begins too early, a task that
// is left out or done twice, a value that is not seen: all show in the values after the last phase, [num_tasks].
void phases(tokenbus::Team* team, int num_phases, int num_tasks, uint64_t* values, uint64_t* num_done) {
  std::vector<uint64_t> other(num_tasks);
  team->run([&](int) {
    uint64_t *before = values, *after = other.data();
    for (int phase = 0; phase < num_phases; phase++) {
      team->share(num_tasks, [&](int i) {
        after[i] = 3 * before[i] + before[(5 * i + 1) % num_tasks];
        num_done[i]++;
      });
      std::swap(before, after);
    }
  });
  if (num_phases % 2 == 1) std::copy(other.begin(), other.end(), values);
}

// Every member's calls of a run.
void runs(tokenbus::Team* team, int num_runs, uint64_t* calls_of_member) {
  for (int run = 0; run < num_runs; run++) team->run([&](int member) { calls_of_member[member]++; });
}

// Phases of a run by the caller alone and of one by all, in turn; adds up what each task of each did: [num_tasks].
void alone_and_together(tokenbus::Team* team, int num_runs, int num_tasks, uint64_t* num_done) {
  const auto task = [&](int i) { num_done[i]++; };
  for (int run = 0; run < num_runs; run++) {
    const auto work = [&](int member) {
      if (run % 2 == 0 && member > 0) std::abort();
      team->share(num_tasks, task);
      team->share(num_tasks, task);
    };
    if (run % 2 == 0)
      team->run_alone(work);
    else
      team->run(work);
  }
}

// One member works in its sleep for so long, and all others wait for it.
void wait_for_one(tokenbus::Team* team, int milliseconds) {
  team->run([&](int) {
    team->share(1, [&](int) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  });
}
}
