// A block of threads: who runs, who waits for whom, and what goes wrong.
//
// One fiber runs at a time, until it meets others at a barrier or at a warp's collective, or ends. In which order the
// ready ones go on is the schedule's choice: what a kernel computes must not depend on it.
#pragma once
#include <vector_types.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/kernels/emulator/counts.h"
#include "tests/kernels/emulator/fiber.h"

namespace emulator {

constexpr int kMaxThreads = 1024, kWarp = 32, kBarriers = 16;

// What lies behind dynamic shared memory, and must be found again: so many bytes of this value.
constexpr int kBehind = 1024, kUntouched = 0x5a;

// kAhead: a warp goes on as long as it can before another one does, the last warp first.
enum Turns : int32_t { kForward = 0, kBackward = 1, kRandom = 2, kAhead = 3 };

// Mirrored in module.py. poison: the byte that shared memory is full of when a block begins.
struct Schedule {
  int32_t order;
  uint32_t seed;
  int32_t poison;
};

// What lanes of a warp do together. mask: the lanes; in, out: of this lane.
struct Collective {
  int operation;
  unsigned mask;
  const void* in;
  void* out;
};

// A cp.async that is under way: its bytes arrive when it is waited for, not before.
struct Copy {
  void* to;
  const void* from;
  int num_bytes, num_zeros;
};

enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kEnded };

struct Fiber {
  void* stack;  // its top while another runs
  Watched watched;
  uint3 thread;
  int lane, warp;
  State state;
  Collective collective;
  std::vector<Copy> copies;      // not arrived yet, in order
  std::vector<size_t> groups;    // how many copies each committed group has
  size_t num_uncommitted;
};

// What threads that meet pass on to each other. Two, in turn: who is already at the next meeting has given nothing yet
// to those who still leave this one.
class Orders {
 public:
  Order* now() { return &orders_[turn_]; }
  void next() { turn_ ^= 1; }

 private:
  Order orders_[2];
  int turn_ = 0;
};

struct Warp {
  unsigned arrived = 0;
  Fiber* lanes[kWarp] = {};
  Orders orders[kWarp];  // by the lowest lane of the mask
};

typedef std::source_location Place;  // in a kernel's file

struct Barrier {
  int count = 0;  // of threads that it is for; 0: all that have not ended
  Place place;    // where those that wait have called it
  Orders orders;
  std::vector<Fiber*> waiting;
};

class Block {
 public:
  Block(dim3 grid, dim3 threads, size_t shared_bytes, const Schedule& schedule)
      : grid(grid), threads(threads), num_threads_(threads.x * threads.y * threads.z), schedule_(schedule),
        shared_bytes_(shared_bytes), stacks_(num_threads_), fibers_(num_threads_), launcher_(watch_this()) {
    for (auto& fiber : fibers_) fiber = std::make_unique<Fiber>(), fiber->watched = watch_new();
    shared_.reset(static_cast<char*>(aligned_alloc(1024, (shared_bytes / 1024 + 2) * 1024)));
  }
  ~Block() {
    if (!error.empty()) return;  // then threads that stopped halfway may still be unwatched, which cannot be undone
    for (auto& fiber : fibers_) forget(fiber->watched);
  }

  // Runs the block until all its threads have ended, or something is wrong: then error says what.
  void run(uint3 index, void (*kernel)());

  // ---- by the running thread ----

  // Waits for `count` threads, 0: for all that have not ended.
  void meet(int id, int count, const Place& place);

  // Waits for the lanes of the mask; the last one computes for all, from warp.lanes.
  template <class Compute>
  void meet_lanes(int operation, unsigned mask, const void* in, void* out, Compute&& compute);

  // Ends the launch.
  void fail(const std::string& message) {
    if (error.empty()) error = message;
    go_on(nullptr);
  }

  void begin() { acquires(&started_); }
  void end();

  char* shared_memory() const { return shared_.get(); }

  const dim3 grid, threads;
  uint3 index;
  Fiber* running = nullptr;
  Counts counts;
  std::string error;

  static constexpr int kSyncWarp = 0;  // the one collective that orders memory

 private:
  struct Free {
    void operator()(char* memory) const { free(memory); }
  };

  void poison();
  void check_shared_memory();
  void start(int thread, void (*kernel)());
  void make_ready(Fiber* fiber);
  void make_ready(std::vector<Fiber*> fibers);
  void suspend();
  Fiber* next();
  void go_on(Fiber* fiber);
  uint32_t random();

  const int num_threads_;
  const Schedule schedule_;
  const size_t shared_bytes_;
  const Stacks stacks_;
  std::unique_ptr<char, Free> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;  // from first_ready_ on
  size_t first_ready_ = 0;
  Warp warps_[kMaxThreads / kWarp];
  Barrier barriers_[kBarriers];
  int num_alive_ = 0;
  uint32_t random_ = 1;
  void* launcher_stack_ = nullptr;
  const Watched launcher_;
  Order started_, ended_;
};

inline Block* block = nullptr;  // that runs: one at a time, on one thread of the system

static inline void count(uint64_t Counts::* what, uint64_t more) {
  Unwatched scope;
  block->counts.*what += more;
}

}  // namespace emulator
