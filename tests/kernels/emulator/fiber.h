// A CUDA thread as a fiber: a stack of its own, which a few instructions switch to and from.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "tests/kernels/emulator/sanitizer.h"

namespace emulator {

// Saves the registers that a call preserves on this stack, and the stack's top in *save; goes on where `to` was saved.
extern "C" void emulator_switch(void** save, void* to);

#ifndef __x86_64__
#error "the emulator switches stacks on x86-64 alone"
#endif
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch,@function
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch,.-emulator_switch
)");

// The stacks of a block's threads, claimed once for all blocks of a launch.
class Stacks {
 public:
  explicit Stacks(int count) : size_(static_cast<size_t>(count) * kBytes) {
    memory_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Stacks() { munmap(memory_, size_); }
  Stacks(const Stacks&) = delete;

  // A fresh stack that begins with a call of `entry`, as emulator_switch takes it. Tops are staggered: a power of two
  // apart, all threads' newest frames would compete for one set of the processor's cache.
  void* fresh(int index, void (*entry)()) const {
    char* end = memory_ + (index + 1) * kBytes - index % 64 * 320;
    void** top = reinterpret_cast<void**>(end) - 8;
    *--top = nullptr;  // where entry would return to; it does not
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    return top;
  }

 private:
  static constexpr size_t kBytes = 128 << 10;

  const size_t size_;
  char* memory_;
};

}  // namespace emulator
