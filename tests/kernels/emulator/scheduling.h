// How a block's threads take turns.
#pragma once
#include <link.h>

#include "tests/kernels/emulator/block.h"

namespace emulator {

// __shared__ variables are thread-local ones (cuda.h), so all of them are this library's thread-local segment.
struct SharedVariables {
  char* begin = nullptr;
  size_t size = 0;

  static SharedVariables find() {
    static thread_local volatile char in_the_segment;
    in_the_segment = 1;  // the segment of this thread is there from here on
    SharedVariables found;
    dl_iterate_phdr(
        [](dl_phdr_info* library, size_t, void* result) {
          const auto here = reinterpret_cast<uintptr_t>(&find);
          bool is_this = false;
          size_t size = 0;
          for (int i = 0; i < library->dlpi_phnum; i++) {
            const auto& segment = library->dlpi_phdr[i];
            const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
            if (segment.p_type == PT_LOAD && here >= begin && here < begin + segment.p_memsz) is_this = true;
            if (segment.p_type == PT_TLS) size = segment.p_memsz;
          }
          if (is_this && library->dlpi_tls_data != nullptr)
            *static_cast<SharedVariables*>(result) = {static_cast<char*>(library->dlpi_tls_data), size};
          return is_this ? 1 : 0;
        },
        &found);
    return found;
  }
};

inline void Block::poison() {
  const SharedVariables variables = SharedVariables::find();
  if (variables.size != 0) memset(variables.begin, schedule_.poison, variables.size);
  memset(shared_.get(), schedule_.poison, shared_bytes_);
  memset(shared_.get() + shared_bytes_, kUntouched, kBehind);
}

inline void Block::check_shared_memory() {
  for (int i = 0; i < kBehind; i++)
    if (shared_.get()[shared_bytes_ + i] != kUntouched && error.empty())
      error = "written " + std::to_string(i) + " bytes past the " + std::to_string(shared_bytes_) +
              " of dynamic shared memory";
}

inline void Block::run(uint3 which, void (*kernel)()) {
  index = which;
  poison();
  random_ = schedule_.seed * 2654435761u + (which.x + 40503u * (which.y + 40503u * which.z)) + 1;
  random_ |= random_ == 0;  // where it would stay
  num_alive_ = num_threads_;
  ready_.clear();
  first_ready_ = 0;
  for (Warp& warp : warps_) warp = {};
  for (Barrier& barrier : barriers_) barrier = {};
  counts.threads += num_threads_;
  for (int thread = 0; thread < num_threads_; thread++) start(thread, kernel);
  std::vector<Fiber*> all;
  for (auto& fiber : fibers_) all.push_back(fiber.get());
  make_ready(std::move(all));
  Fiber* first = next();
  running = first;
  releases(&started_);
  goes_on(first->watched);
  emulator_switch(&launcher_stack_, first->stack);
  acquires(&ended_);
  check_shared_memory();
}

inline void Block::start(int thread, void (*kernel)()) {
  Fiber& fiber = *fibers_[thread];
  const unsigned x = threads.x, y = threads.y;
  fiber.thread = {thread % x, thread / x % y, thread / (x * y)};
  fiber.lane = thread % kWarp;
  fiber.warp = thread / kWarp;
  fiber.copies.clear();
  fiber.groups.clear();
  fiber.num_uncommitted = 0;
  fiber.stack = stacks_.fresh(thread, kernel);
  forget(fiber.watched);  // with what the thread before it was unwatched for
  fiber.watched = watch_new();
  warps_[fiber.warp].lanes[fiber.lane] = &fiber;
}

inline uint32_t Block::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  return random_;
}

inline void Block::make_ready(Fiber* fiber) {
  fiber->state = State::kReady;
  ready_.push_back(fiber);
  if (schedule_.order == kRandom) {
    const size_t other = first_ready_ + random() % (ready_.size() - first_ready_);
    std::swap(ready_.back(), ready_[other]);
  }
}

inline void Block::make_ready(std::vector<Fiber*> fibers) {
  if (schedule_.order == kBackward) std::reverse(fibers.begin(), fibers.end());
  if (schedule_.order == kAhead)  // next() takes the last one
    std::sort(fibers.begin(), fibers.end(), [](Fiber* a, Fiber* b) {
      return a->warp != b->warp ? a->warp < b->warp : a->lane > b->lane;
    });
  for (Fiber* fiber : fibers) make_ready(fiber);
}

// nullptr: the launcher. Not instrumented either, see goes_on.
__attribute__((noinline, no_sanitize("thread"))) inline void Block::go_on(Fiber* fiber) {
  void** save = &running->stack;
  running = fiber;
  goes_on(fiber != nullptr ? fiber->watched : launcher_);
  emulator_switch(save, fiber != nullptr ? fiber->stack : launcher_stack_);
}

// Who is to go on when the running fiber waits, or has ended. nullptr: the launcher.
inline Fiber* Block::next() {
  if (schedule_.order == kAhead && !ready_.empty()) {
    Fiber* newest = ready_.back();
    ready_.pop_back();
    return newest;
  }
  if (first_ready_ < ready_.size()) {
    Fiber* next = ready_[first_ready_++];
    if (first_ready_ > kMaxThreads) ready_.erase(ready_.begin(), ready_.begin() + first_ready_), first_ready_ = 0;
    return next;
  }
  if (num_alive_ == 0) return nullptr;
  const auto count = [&](State state) {
    return std::count_if(fibers_.begin(), fibers_.end(), [&](auto& fiber) { return fiber->state == state; });
  };
  fail("deadlock: " + std::to_string(count(State::kAtBarrier)) + " threads at a barrier, " +
       std::to_string(count(State::kAtCollective)) + " at a warp's collective, " +
       std::to_string(count(State::kEnded)) + " have ended");
  return nullptr;
}

inline void Block::suspend() {
  Fiber* fiber = next();
  if (fiber != running) go_on(fiber);
}

static inline std::string name_of(const Place& place) {
  const std::string file = place.file_name();
  return "line " + std::to_string(place.line()) + " of " + file.substr(file.rfind('/') + 1);
}

inline void Block::meet(int id, int count, const Place& place) {
  Unwatched scope;
  Barrier& barrier = barriers_[id];
  if (barrier.waiting.empty()) barrier.place = place;
  if (barrier.place.line() != place.line() || strcmp(barrier.place.file_name(), place.file_name()) != 0)
    fail("threads of a block are at different barriers: " + std::to_string(barrier.waiting.size()) + " at " +
         name_of(barrier.place) + ", one at " + name_of(place));
  counts.barriers++;
  Order* const order = barrier.orders.now();
  releases(order);
  running->state = State::kAtBarrier;
  barrier.count = count;
  barrier.waiting.push_back(running);
  if (static_cast<int>(barrier.waiting.size()) >= (count != 0 ? count : num_alive_)) {
    std::vector<Fiber*> all = std::move(barrier.waiting);
    barrier.waiting.clear();
    barrier.orders.next();
    std::sort(all.begin(), all.end(), [](Fiber* a, Fiber* b) {
      return a->warp * kWarp + a->lane < b->warp * kWarp + b->lane;
    });
    make_ready(std::move(all));
  }
  suspend();
  acquires(order);
}

template <class Compute>
inline void Block::meet_lanes(int operation, unsigned mask, const void* in, void* out, Compute&& compute) {
  Unwatched scope;
  Fiber* fiber = running;
  Warp& warp = warps_[fiber->warp];
  counts.collectives++;
  if (!(mask >> fiber->lane & 1)) fail("a lane calls a warp's collective that its mask leaves out");
  fiber->collective = {operation, mask, in, out};
  fiber->state = State::kAtCollective;
  warp.arrived |= 1u << fiber->lane;
  Orders& orders = warp.orders[__builtin_ctz(mask)];
  Order* const order = orders.now();
  if (operation == kSyncWarp) releases(order);
  if ((warp.arrived & mask) == mask) {
    std::vector<Fiber*> lanes;
    for (int lane = 0; lane < kWarp; lane++) {
      if (!(mask >> lane & 1)) continue;
      const Collective& other = warp.lanes[lane]->collective;
      if (other.operation != operation || other.mask != mask)
        fail("lanes of one warp are at different collectives, or give different masks");
      lanes.push_back(warp.lanes[lane]);
    }
    compute(warp.lanes);
    warp.arrived &= ~mask;
    if (operation == kSyncWarp) orders.next();
    make_ready(std::move(lanes));
  }
  suspend();
  if (operation == kSyncWarp) acquires(order);
}

// The running thread returns from the kernel.
inline void Block::end() {
  Fiber* fiber;
  {
    Unwatched scope;
    running->state = State::kEnded;
    num_alive_--;
    Barrier& barrier = barriers_[0];
    if (barrier.count == 0 && num_alive_ > 0 && static_cast<int>(barrier.waiting.size()) >= num_alive_) {
      std::vector<Fiber*> all = std::move(barrier.waiting);
      barrier.waiting.clear();
      barrier.orders.next();
      make_ready(std::move(all));
    }
    releases(&ended_);
    fiber = next();
  }
  go_on(fiber);
}

}  // namespace emulator
