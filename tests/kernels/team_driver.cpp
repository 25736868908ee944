// What test_team.py has a team do.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/native/team.h"

namespace {

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Each task of a phase adds up what two tasks of the phase before have left. A phase that begins too early, a task that
// is left out or done twice, a value that is not seen: all show in the values after the last phase, [num_tasks].
template <class Share>
void add_up(tokenbus::Team* team, int num_phases, int num_tasks, uint64_t* values, Share&& share) {
  std::vector<uint64_t> other(num_tasks);
  team->run([&](tokenbus::Member& member) {
    uint64_t *before = values, *after = other.data();
    for (int phase = 0; phase < num_phases; phase++) {
      share(member, phase, before, after);
      std::swap(before, after);
    }
  });
  if (num_phases % 2 == 1) std::copy(other.begin(), other.end(), values);
}

uint64_t sum(const uint64_t* before, int task, int num_tasks) {
  return 3 * before[task] + before[(5 * task + 1) % num_tasks];
}

}  // namespace

extern "C" {

void phases(tokenbus::Team* team, int num_phases, int num_tasks, uint64_t* values, uint64_t* num_done) {
  add_up(team, num_phases, num_tasks, values, [&](tokenbus::Member& member, int, uint64_t* before, uint64_t* after) {
    member.share(num_tasks, [&](int task) {
      after[task] = sum(before, task, num_tasks);
      num_done[task]++;
    });
  });
}

// The same in tasks that can be taken over. In every stall_every-th phase whoever first computes a task, or first commits
// one where stalls_commit, sleeps for so long.
void stalled_phases(tokenbus::Team* team, int num_phases, int num_tasks, int stall_every, int stall_ms,
                        bool stalls_commit, uint64_t* values, uint64_t* num_done) {
  std::vector<std::atomic<bool>> has_stalled(num_phases);
  const auto stall = [&](int phase) {
    if (phase % stall_every == 0 && !has_stalled[phase].exchange(true)) sleep_ms(stall_ms);
  };
  add_up(team, num_phases, num_tasks, values,
         [&](tokenbus::Member& member, int phase, uint64_t* before, uint64_t* after) {
           uint64_t computed = 0;
           member.share(
               num_tasks,
               [&](int task) {
                 computed = sum(before, task, num_tasks);
                 if (!stalls_commit) stall(phase);
               },
               [&](int task) {
                 if (stalls_commit) stall(phase);
                 after[task] = computed;
                 num_done[task]++;
               });
         });
}

// The thread that computes first goes on when all phases are done, or after so long. Whether it saw them done: then it
// has held up nobody.
bool outlast(tokenbus::Team* team, int num_phases, int num_tasks, int limit_ms) {
  std::atomic<int> num_committed{0};
  std::atomic<bool> is_first{true}, saw_all_done{false};
  team->run([&](tokenbus::Member& member) {
    for (int phase = 0; phase < num_phases; phase++)
      member.share(
          num_tasks,
          [&](int) {
            if (!is_first.exchange(false)) return;
            for (int waited = 0; waited < limit_ms && !saw_all_done; waited++) {
              sleep_ms(1);
              saw_all_done = num_committed == num_phases * num_tasks;
            }
          },
          [&](int) { num_committed++; });
  });
  return saw_all_done && num_committed == num_phases * num_tasks;
}

// Every member's calls of a run: the caller has one in each.
void runs(tokenbus::Team* team, int num_runs, uint64_t* calls_of_member) {
  for (int run = 0; run < num_runs; run++)
    team->run([&](tokenbus::Member& member) {
      calls_of_member[member.index()]++;
      member.share(1, [](int) {});
    });
}

// As many tasks as threads twice over, the first of which wait for one another, so that every thread has one. Who did
// each: [2 * size].
void meet(tokenbus::Team* team, int* member_of_task) {
  std::atomic<int> num_begun{0};
  team->run([&](tokenbus::Member& member) {
    member.share(2 * team->size(), [&](int task) {
      member_of_task[task] = member.index();
      num_begun++;
      while (num_begun < team->size()) sleep_ms(0);
    });
  });
}

// One member works in its sleep for so long, and all others wait for it.
void wait_for_one(tokenbus::Team* team, int milliseconds) {
  team->run([&](tokenbus::Member& member) { member.share(1, [&](int) { sleep_ms(milliseconds); }); });
}
}
