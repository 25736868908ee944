// cp.async: what is copied arrives when it is waited for, and not before.
#pragma once
#include <cstring>

#include "tests/kernels/emulator/block.h"

namespace emulator {

constexpr size_t kMostGroups = 16;  // what a kernel may have under way; more is a mistake

static inline void expect_aligned(const void* address, size_t alignment, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0)
    block->fail(std::string("a misaligned address for ") + what);
}

static inline void arrive(const Copy& copy) {
  if (copy.num_bytes != 0) memcpy(copy.to, copy.from, copy.num_bytes);
  memset(static_cast<char*>(copy.to) + copy.num_bytes, 0, copy.num_zeros);
}

static inline void begin_copy(void* to, const void* from, int num_bytes, int num_zeros) {
  Fiber* fiber = block->running;
  expect_aligned(to, num_bytes + num_zeros, "cp.async");
  if (num_bytes != 0) expect_aligned(from, num_bytes + num_zeros, "cp.async");
  count(&Counts::copied_bytes, num_bytes);
  fiber->copies.push_back({to, from, num_bytes, num_zeros});
  fiber->num_uncommitted++;
}

static inline void commit_copies() {
  Fiber* fiber = block->running;
  if (fiber->groups.size() == kMostGroups) block->fail("too many groups of cp.async under way");
  fiber->groups.push_back(fiber->num_uncommitted);
  fiber->num_uncommitted = 0;
}

// Until at most num_pending groups are under way.
static inline void await_copies(size_t num_pending) {
  Fiber* fiber = block->running;
  if (fiber->groups.size() <= num_pending) return;
  size_t num_arriving = 0;
  const size_t num_groups = fiber->groups.size() - num_pending;
  for (size_t group = 0; group < num_groups; group++) num_arriving += fiber->groups[group];
  for (size_t i = 0; i < num_arriving; i++) arrive(fiber->copies[i]);
  fiber->copies.erase(fiber->copies.begin(), fiber->copies.begin() + num_arriving);
  fiber->groups.erase(fiber->groups.begin(), fiber->groups.begin() + num_groups);
}

// A thread that ends with copies under way: they still arrive, in memory that others may be using.
static inline void finish_copies() {
  Fiber* fiber = block->running;
  for (const Copy& copy : fiber->copies) arrive(copy);
  fiber->copies.clear();
  fiber->groups.clear();
  fiber->num_uncommitted = 0;
}

}  // namespace emulator
