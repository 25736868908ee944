// The threads of an engine step.
//
// A step is one parallel region of a few hundred phases. In each phase the threads take tasks from a common counter, so
// that one which the system has taken the core from holds up at most the tasks it has begun; a barrier ends the phase.
// Whoever waits spins for some microseconds, since phases are short, and then sleeps, since other services want the
// cores too. Between steps all sleep. The spinning is plain loads: in a virtual machine a loop of PAUSE instructions
// makes the hypervisor take the core away (measured: steps at one row took 12 ms instead of 6).
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace tokenbus {

class Team {
 public:
  // num_threads counts the caller of run, who works along.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;

  int size() const { return size_; }

  // Within a run: how many members take part, the first so many.
  int num_working() const { return num_working_; }

  // Runs work(member) once on every thread, member from 0, and returns when all have ended. One caller at a time.
  void run(const std::function<void(int)>& work);

  // The same by the caller alone: nobody is woken, and share and barrier wait for nobody.
  void run_alone(const std::function<void(int)>& work);

  // Within run, by every member: task(index) once for each index below num_tasks, by whoever is free. All tasks are
  // done, and seen by all, when it returns.
  template <class Task>
  void share(int num_tasks, Task&& task) {
    for (int index = next_.fetch_add(1, std::memory_order_relaxed); index < num_tasks;
         index = next_.fetch_add(1, std::memory_order_relaxed))
      task(index);
    barrier();
  }

  // Within run, by every member: nobody goes on before all have come.
  void barrier() {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_working_) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    for (int spin = 0; spin < kSpins; spin++)
      if (phase_.load(std::memory_order_acquire) != phase) return;
    while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase, std::memory_order_acquire);
  }

 private:
  static constexpr int kSpins = 5000;  // some microseconds

  void work_until_closed(int member);

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  int num_working_ = 0;  // members of the present run
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> next_{0};
  bool closing_ = false;
};

}  // namespace tokenbus
