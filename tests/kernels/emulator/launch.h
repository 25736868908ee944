// From the caller in Python to a grid of blocks.
#pragma once
#include <cstdio>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/kernels/emulator/copies.h"
#include "tests/kernels/emulator/scheduling.h"

namespace emulator {

// Mirrored in module.py. arguments: where each lies.
struct Request {
  uint32_t grid[3], threads[3];
  uint64_t shared_bytes;
  void** arguments;
  Schedule schedule;
};

// What each thread of the launch calls.
inline void (*call)(void*) = nullptr;
inline void* callee = nullptr;

// The first frame of a fiber.
inline void begin() {
  acquires(block);
  call(callee);
  finish_copies();
  block->end();
}

inline void run_grid(const Request& request, Counts* counts, std::string& error) {
  const dim3 grid(request.grid[0], request.grid[1], request.grid[2]);
  const dim3 threads(request.threads[0], request.threads[1], request.threads[2]);
  Block all(grid, threads, request.shared_bytes, request.schedule);
  block = &all;
  const uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t i = 0; i < count && all.error.empty(); i++) {
    const uint64_t at = request.schedule.order == kBackward ? count - 1 - i : i;
    all.run({static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
             static_cast<unsigned>(at / grid.x / grid.y)}, &begin);
  }
  block = nullptr;
  if (!all.error.empty())
    error = "block (" + std::to_string(all.index.x) + ", " + std::to_string(all.index.y) + ", " +
            std::to_string(all.index.z) + "): " + all.error;
  *counts = all.counts;
}

// 0, or 1 with a message.
template <class... Arguments>
int launch(void (*kernel)(Arguments...), const Request* request, Counts* counts, char* message, size_t size) {
  struct Callee {
    void (*kernel)(Arguments...);
    void** arguments;
  } of_this{kernel, request->arguments};
  callee = &of_this;
  call = [](void* memory) {
    const Callee& self = *static_cast<Callee*>(memory);
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      self.kernel(*static_cast<std::decay_t<Arguments>*>(self.arguments[kIndex])...);
    }(std::index_sequence_for<Arguments...>{});
  };
  std::string error;
  run_grid(*request, counts, error);
  snprintf(message, size, "%s", error.c_str());
  return error.empty() ? 0 : 1;
}

template <class... Arguments>
constexpr int num_arguments(void (*)(Arguments...)) {
  return sizeof...(Arguments);
}

// The bytes of each argument, so that the caller's can be checked.
template <class... Arguments>
void sizes_of(void (*)(Arguments...), int32_t* sizes) {
  ((*sizes++ = sizeof(std::decay_t<Arguments>)), ...);
}

}  // namespace emulator

// What a library exports for one instance of a kernel.
#define EMULATOR_EXPORT(symbol, ...)                                                                            \
  extern "C" int symbol##_launch(const emulator::Request* request, emulator::Counts* counts, char* message,     \
                                 size_t size) {                                                                 \
    return emulator::launch(__VA_ARGS__, request, counts, message, size);                                       \
  }                                                                                                             \
  extern "C" int symbol##_num_arguments() { return emulator::num_arguments(__VA_ARGS__); }                      \
  extern "C" void symbol##_sizes(int32_t* sizes) { emulator::sizes_of(__VA_ARGS__, sizes); }
