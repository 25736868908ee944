#include "kernels/native/team.h"

#include "kernels/native/amx.h"

namespace tokenbus {

Team::Team(int num_threads) : size_(num_threads) {
  for (int member = 1; member < size_; member++) threads_.emplace_back([this, member] { work_until_closed(member); });
}

Team::~Team() {
  closing_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  work_ = &work;
  num_working_ = size_;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  work(0);
  release_tiles();
  barrier();  // after this nobody uses work any more
}

void Team::run_alone(const std::function<void(int)>& work) {
  num_working_ = 1;
  work(0);
  release_tiles();
}

void Team::work_until_closed(int member) {
  for (uint32_t seen = 0;; seen++) {
    run_.wait(seen, std::memory_order_acquire);
    if (closing_) return;
    (*work_)(member);
    release_tiles();
    barrier();
  }
}

}  // namespace tokenbus

extern "C" {
tokenbus::Team* tokenbus_team_new(int num_threads) { return new tokenbus::Team(num_threads); }
void tokenbus_team_delete(tokenbus::Team* team) { delete team; }
}
