#include "kernels/native/team.h"

#include "kernels/native/amx.h"

namespace tokenbus {

Team::Team(int num_threads) : seats_(num_threads) {
  for (int index = 1; index < num_threads; index++) threads_.emplace_back([this, index] { work_until_closed(index); });
}

Team::~Team() {
  closing_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(Member&)>& work) {
  work_ = &work;
  first_phase_ = phase_.load(std::memory_order_relaxed);
  inside_.store(0, std::memory_order_release);
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  Member member(*this, 0);
  work(member);
  release_tiles();
  // Whoever is still inside may be reading what the caller is about to change.
  uint32_t inside = inside_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  for (int spin = 0; inside != kClosed; inside = inside_.load(std::memory_order_acquire))
    if (++spin > kSpins) inside_.wait(inside, std::memory_order_acquire);
}

// False if the run is over.
bool Team::enter() {
  uint32_t inside = inside_.load(std::memory_order_acquire);
  while (!(inside & kClosed))
    if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
  return false;
}

void Team::leave() {
  if (inside_.fetch_sub(1, std::memory_order_acq_rel) - 1 == kClosed) inside_.notify_all();
}

void Team::work_until_closed(int index) {
  for (uint32_t seen = 0;;) {
    run_.wait(seen, std::memory_order_acquire);
    seen = run_.load(std::memory_order_acquire);
    if (closing_) return;
    if (!enter()) continue;
    Member member(*this, index);
    (*work_)(member);
    release_tiles();
    leave();
  }
}

}  // namespace tokenbus

extern "C" {
tokenbus::Team* tokenbus_team_new(int num_threads) { return new tokenbus::Team(num_threads); }
void tokenbus_team_delete(tokenbus::Team* team) { delete team; }
}
