// From the caller in Python to a grid of blocks.
#pragma once
#include <algorithm>
#include <cstdio>
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
  block->begin();
  call(callee);
  finish_copies();
  block->end();
}

static inline std::vector<uint64_t> order_of_blocks(uint64_t count, const Schedule& schedule) {
  std::vector<uint64_t> order(count);
  for (uint64_t i = 0; i < count; i++) order[i] = schedule.order == kBackward ? count - 1 - i : i;
  uint64_t random = schedule.seed;
  for (uint64_t i = count; schedule.order == kRandom && i > 1; i--) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(random >> 33) % i]);
  }
  return order;
}

inline void run_grid(const Request& request, Counts* counts, std::string& error) {
  const dim3 grid(request.grid[0], request.grid[1], request.grid[2]);
  const dim3 threads(request.threads[0], request.threads[1], request.threads[2]);
  Block all(grid, threads, request.shared_bytes, request.schedule);
  block = &all;
  const uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  for (const uint64_t at : order_of_blocks(count, request.schedule)) {
    if (!all.error.empty()) break;
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

// What an argument is, so that the caller's can be checked; mirrored in module.py. pointee: bytes of what a pointer
// points to if that is a number, 1 if it is anything else; 0: no pointer.
struct Parameter {
  int32_t size, pointee, is_float;
};

template <class Argument>
constexpr Parameter parameter_of() {
  int pointee = 0;
  if constexpr (std::is_pointer_v<Argument>) {
    using Pointee = std::remove_cv_t<std::remove_pointer_t<Argument>>;
    pointee = 1;
    if constexpr (std::is_arithmetic_v<Pointee> || std::is_same_v<Pointee, __nv_bfloat16> ||
                  std::is_same_v<Pointee, __half>)
      pointee = sizeof(Pointee);
  }
  return {sizeof(Argument), pointee, std::is_floating_point_v<Argument>};
}

template <class... Arguments>
void parameters_of(void (*)(Arguments...), Parameter* parameters) {
  ((*parameters++ = parameter_of<std::decay_t<Arguments>>()), ...);
}

}  // namespace emulator

// What a library exports for one instance of a kernel.
#define EMULATOR_EXPORT(symbol, ...)                                                                            \
  extern "C" int symbol##_launch(const emulator::Request* request, emulator::Counts* counts, char* message,     \
                                 size_t size) {                                                                 \
    return emulator::launch(__VA_ARGS__, request, counts, message, size);                                       \
  }                                                                                                             \
  extern "C" int symbol##_num_arguments() { return emulator::num_arguments(__VA_ARGS__); }                      \
  extern "C" void symbol##_parameters(emulator::Parameter* parameters) {                                        \
    emulator::parameters_of(__VA_ARGS__, parameters);                                                           \
  }
