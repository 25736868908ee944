// What lanes of a warp do together: shuffles and votes.
#pragma once
#include <cstring>

#include "tests/kernels/emulator/scheduling.h"

namespace emulator {

// Numbers of collectives; lanes that meet must be at the same one. 0 is Block::kSyncWarp.
enum Operation : int { kShuffle = 1, kShuffleXor, kShuffleDown, kShuffleUp, kBallot, kMatrixLoad, kMatrixLoadTransposed, kMatrixProduct };

constexpr unsigned kAllLanes = ~0u;

// Every lane gets the value of the lane that it names; of a lane that the mask leaves out, ones in every bit.
template <class Value>
Value shuffle(Operation operation, unsigned mask, Value value, int source) {
  struct In {
    Value value;
    int source;
  } in{value, source};
  Value out;
  block->meet_lanes(operation, mask, &in, &out, [mask](Fiber* const* lanes) {
    for (int lane = 0; lane < kWarp; lane++) {
      if (!(mask >> lane & 1)) continue;
      const int from = static_cast<const In*>(lanes[lane]->collective.in)->source;
      void* to = lanes[lane]->collective.out;
      if (mask >> from & 1)
        memcpy(to, &static_cast<const In*>(lanes[from]->collective.in)->value, sizeof(Value));
      else
        memset(to, 0xff, sizeof(Value));
    }
  });
  return out;
}

}  // namespace emulator

static inline void __syncwarp(unsigned mask = emulator::kAllLanes) {
  emulator::block->meet_lanes(emulator::Block::kSyncWarp, mask, nullptr, nullptr, [](emulator::Fiber* const*) {});
}

// width: of the groups of lanes that stay among themselves, a power of two.
template <class Value>
Value __shfl_sync(unsigned mask, Value value, int source, int width = 32) {
  const int lane = emulator::block->running->lane, first = lane & ~(width - 1);
  return emulator::shuffle(emulator::kShuffle, mask, value, first | (source & (width - 1)));
}

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int bits, int width = 32) {
  const int lane = emulator::block->running->lane, other = lane ^ (bits & (emulator::kWarp - 1));
  const bool is_beyond = (other & ~(width - 1)) > (lane & ~(width - 1));
  return emulator::shuffle(emulator::kShuffleXor, mask, value, is_beyond ? lane : other);
}

template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance, int width = 32) {
  const int lane = emulator::block->running->lane, other = lane + static_cast<int>(distance % emulator::kWarp);
  const bool is_beyond = (other & ~(width - 1)) != (lane & ~(width - 1));
  return emulator::shuffle(emulator::kShuffleDown, mask, value, is_beyond ? lane : other);
}

template <class Value>
Value __shfl_up_sync(unsigned mask, Value value, unsigned distance, int width = 32) {
  const int lane = emulator::block->running->lane, other = lane - static_cast<int>(distance % emulator::kWarp);
  const bool is_beyond = other < (lane & ~(width - 1));
  return emulator::shuffle(emulator::kShuffleUp, mask, value, is_beyond ? lane : other);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned votes;
  emulator::block->meet_lanes(emulator::kBallot, mask, &predicate, &votes, [mask](emulator::Fiber* const* lanes) {
    unsigned all = 0;
    for (int lane = 0; lane < emulator::kWarp; lane++)
      if (mask >> lane & 1 && *static_cast<const int*>(lanes[lane]->collective.in) != 0) all |= 1u << lane;
    for (int lane = 0; lane < emulator::kWarp; lane++)
      if (mask >> lane & 1) *static_cast<unsigned*>(lanes[lane]->collective.out) = all;
  });
  return votes;
}

static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
