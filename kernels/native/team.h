// The threads of an engine step.
//
// A step is one parallel region of a few hundred phases. In each phase every thread has a range of the tasks, so that it
// reads weights in a row, and takes from the others' when its own is empty. The phase is over when all its tasks are done:
// nobody waits for a thread, only for tasks. So one from which the system has taken the core holds up the others by no
// more than a task that it has begun. Not even by that if the task is computed in private and then committed: whoever
// waits for longer than such a task takes computes it as well, and the first to settle commits it. The services of a node
// share the cores with the engine, and interrupt it several times in every step.
//
// Whoever waits spins for some microseconds, since phases are short, and then sleeps. Between steps all sleep. The
// spinning is plain loads: in a virtual machine a loop of PAUSE instructions makes the hypervisor take the core away
// (measured: steps at one row took 12 ms instead of 6).
#pragma once
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace tokenbus {

class Member;

class Team {
 public:
  // num_threads counts the caller of run, who works along.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;

  int size() const { return static_cast<int>(seats_.size()); }

  // Runs work on every thread that comes in time, the caller surely, and returns when all tasks are done and nobody is
  // in it any more. Every thread must go through the same phases. One caller at a time.
  void run(const std::function<void(Member&)>& work);

 private:
  friend class Member;

  static constexpr int kNone = -1;
  static constexpr int kSpins = 5000;  // some microseconds
  static constexpr uint32_t kClosed = 1u << 31;

  // By member. next: the phase, and how many of its range have been taken. held: what it computes and has not settled, as
  // phase << 32 | task + 1, or 0.
  struct alignas(128) Seat {
    std::atomic<uint64_t> next{0};
    alignas(64) std::atomic<uint64_t> held{0};
  };

  static constexpr uint64_t word(uint32_t phase, int task) { return static_cast<uint64_t>(phase) << 32 | task; }
  static constexpr uint32_t phase_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static constexpr int task_of(uint64_t word) { return static_cast<int>(word & 0xffffffff); }

  bool is_over(uint32_t phase) const { return phase_.load(std::memory_order_acquire) != phase; }

  // A task that nobody has taken, of the member's own range if there is one, or kNone.
  int take(uint32_t phase, int num_tasks, int member) {
    for (int other = 0; other < size(); other++) {
      const int owner = member + other < size() ? member + other : member + other - size();
      const int first = first_of(owner, num_tasks), count = first_of(owner + 1, num_tasks) - first;
      std::atomic<uint64_t>& counter = seats_[owner].next;
      uint64_t next = counter.load(std::memory_order_acquire);
      while (phase_of(next) == phase && task_of(next) < count)
        if (counter.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel, std::memory_order_acquire))
          return first + task_of(next);
    }
    return kNone;
  }

  int first_of(int member, int num_tasks) const { return static_cast<int>(int64_t{num_tasks} * member / size()); }

  // One more task is done.
  void finish(uint32_t phase, int num_tasks) {
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_tasks) return;
    num_done_.store(0, std::memory_order_relaxed);
    for (Seat& seat : seats_) seat.next.store(word(phase + 1, 0), std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  }

  void wait(uint32_t phase) const {
    for (int spin = 0; spin < kSpins; spin++)
      if (is_over(phase)) return;
    while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase, std::memory_order_acquire);
  }

  bool enter();
  void leave();
  void work_until_closed(int index);

  std::vector<Seat> seats_;
  std::vector<std::thread> threads_;
  const std::function<void(Member&)>* work_ = nullptr;
  uint32_t first_phase_ = 0;  // of the run
  bool closing_ = false;
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> inside_{kClosed};  // threads in the run besides its caller, and whether it is closed
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> num_done_{0};
};

// A thread in a run.
class Member {
 public:
  Member(Team& team, int index) : team_(team), index_(index), phase_(team.first_phase_) {}
  Member(const Member&) = delete;

  int index() const { return index_; }

  // A phase: task(index) once for each index below num_tasks, by whoever is free. All are done, and seen by all, when it
  // returns.
  template <class Task>
  void share(int num_tasks, Task&& task) {
    if (num_tasks == 0) return;
    const uint32_t phase = phase_++;
    for (int index; (index = team_.take(phase, num_tasks, index_)) != Team::kNone;) {
      task(index);
      team_.finish(phase, num_tasks);
    }
    team_.wait(phase);
  }

  // A phase of tasks that others can take over. compute(index) may be called by several threads, even after the phase,
  // and writes nothing that others see; the same thread then calls commit(index), if at all: once for each index.
  template <class Compute, class Commit>
  void share(int num_tasks, Compute&& compute, Commit&& commit) {
    if (num_tasks == 0) return;
    const uint32_t phase = phase_++;
    const auto settle = [&](Team::Seat& seat, uint64_t word) {
      const int index = Team::task_of(word) - 1;
      compute(index);
      if (!seat.held.compare_exchange_strong(word, 0, std::memory_order_acq_rel)) return;
      commit(index);
      team_.finish(phase, num_tasks);
    };
    Team::Seat& own = team_.seats_[index_];
    const uint64_t begun = __rdtsc();
    int num_taken = 0;
    for (int index; (index = team_.take(phase, num_tasks, index_)) != Team::kNone; num_taken++) {
      const uint64_t word = Team::word(phase, index + 1);
      own.held.store(word, std::memory_order_release);
      settle(own, word);
    }
    if (has_patience(phase, __rdtsc() - begun, num_taken)) return;
    for (Team::Seat& seat : team_.seats_) {
      const uint64_t word = seat.held.load(std::memory_order_acquire);
      if (word != 0 && Team::phase_of(word) == phase) settle(seat, word);
    }
    team_.wait(phase);
  }

 private:
  static constexpr uint64_t kLeastPatience = 8000, kMostPatience = 200000;  // in cycles of the time stamp counter

  // Waits for twice as long as one of the tasks has taken; whether the phase was over by then.
  bool has_patience(uint32_t phase, uint64_t cycles, int num_tasks) const {
    const uint64_t patience = std::clamp(num_tasks > 0 ? 2 * cycles / num_tasks : 0, kLeastPatience, kMostPatience);
    const uint64_t begun = __rdtsc();
    while (!team_.is_over(phase))
      if (__rdtsc() - begun > patience) return false;
    return true;
  }

  Team& team_;
  const int index_;
  uint32_t phase_;
};

}  // namespace tokenbus
