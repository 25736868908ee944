// What a launch did, added up over its threads; module.py reads the fields in this order.
#pragma once
#include <cstdint>

namespace emulator {

struct Counts {
  uint64_t threads = 0;
  uint64_t barriers = 0;          // threads that came to one
  uint64_t collectives = 0;       // lanes that came to one
  uint64_t matrix_products = 0;   // mma_16x8x16, by warp
  uint64_t matrix_loads = 0;      // ldmatrix, by warp
  uint64_t bank_conflicts = 0;    // further rounds that ldmatrix needed
  uint64_t copied_bytes = 0;      // by cp.async, from global memory
  uint64_t loaded_bytes = 0;      // by load_16
};

}  // namespace emulator
