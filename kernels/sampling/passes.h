// Passes over a row: what the sampler asks of all its tokens at once. A pass over 49,152 floats takes some 2 us.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/sampling/lanes.h"

namespace tokenbus {

struct Row {
  float* values;
  int size;
};

// A place in the order of likelihood: tokens are before it that have a larger value, or the same and a lower id.
struct Place {
  float value;
  int token;
};

// Calls visit(values, first token) for every register of the row; what the last one lacks is `filler`.
template <class Visit>
static inline void for_each_register(const Row& row, float filler, Visit&& visit) {
  int first = 0;
  for (; first + lanes::kLanes <= row.size; first += lanes::kLanes) visit(lanes::load(row.values + first), first);
  if (first < row.size) visit(lanes::load_some(row.values + first, row.size - first, filler), first);
}

// The tokens of a register, from `first` on, that are before a place.
static inline lanes::Mask before(lanes::Floats values, int first, const Place& place) {
  const lanes::Floats value = lanes::Floats{} + place.value;
  lanes::Mask mask = lanes::above(values, value);
  if (const lanes::Mask equals = lanes::equal(values, value)) mask |= equals & lanes::first_lanes(place.token - first);
  return mask;
}

struct Look {
  float largest;
  bool is_finite;  // whether all values are
};

static inline Look look_at(const Row& row) {
  lanes::Floats most = lanes::Floats{} - lanes::kInfinity;
  lanes::Ints most_bits{};  // of a value without its sign: the larger, the farther from 0; then infinity; then NaN
  for_each_register(row, row.values[0], [&](lanes::Floats values, int) {
    const lanes::Ints bits = (lanes::Ints)values & 0x7FFFFFFF;
    most = lanes::larger(most, values);
    most_bits = bits > most_bits ? bits : most_bits;
  });
  bool is_finite = true;
  for (int lane = 0; lane < lanes::kLanes; lane++) is_finite &= most_bits[lane] < 0x7F800000;
  return {lanes::largest_of(most), is_finite};
}

// The lowest token with this finite value, -1 if there is none.
static inline int find(const Row& row, float value) {
  for (int first = 0; first < row.size; first += lanes::kLanes) {
    const lanes::Floats values = lanes::load_some(row.values + first, row.size - first, -lanes::kInfinity);
    if (const lanes::Mask found = lanes::equal(values, lanes::Floats{} + value)) return first + __builtin_ctz(found);
  }
  return -1;
}

struct Masses {
  double all, before;
};

// Sums of e^value over the tokens before `end`, and over those of them before `place`; values are 0 at most. With a
// relative error under 3e-6 if Precision is Floats, and under 1e-13 if it is Doubles, which takes three times as long.
template <class Precision>
static inline Masses masses(const Row& row, const Place& end, const Place& place) {
  const lanes::Floats none = lanes::Floats{} - 80;  // far enough from what is slow: denormal numbers
  lanes::Doubles all{}, before_place{};
  lanes::Floats some{}, some_before{};
  int num_added = 0;
  const auto flush = [&] {
    all += lanes::low_half(some) + lanes::high_half(some);
    before_place += lanes::low_half(some_before) + lanes::high_half(some_before);
    some = some_before = lanes::Floats{};
  };
  for_each_register(row, -lanes::kInfinity, [&](lanes::Floats values, int first) {
    const lanes::Mask mask = before(values, first, end);
    if (!mask) return;
    const lanes::Floats counted = lanes::select(mask, lanes::larger(values, none), none);
    const lanes::Floats share = lanes::select(before(values, first, place), lanes::Floats{} + 1, lanes::Floats{});
    if constexpr (std::is_same_v<Precision, lanes::Floats>) {
      const lanes::Floats mass = lanes::exp(counted);
      some += mass;
      some_before += mass * share;
      if (++num_added % 16 == 0) flush();
    } else {
      const lanes::Doubles low = lanes::exp(lanes::low_half(counted)), high = lanes::exp(lanes::high_half(counted));
      all += low + high;
      before_place += low * lanes::low_half(share) + high * lanes::high_half(share);
    }
  });
  flush();
  return {lanes::sum_of(all), lanes::sum_of(before_place)};
}

// The value of rank k, 1 <= k; a value below all finite ones if there are fewer than k of those.
//
// Halves the range of values, two times a pass, until it holds few enough of them to be sorted out.
static inline float kth_largest(const Row& row, int k) {
  constexpr int kFew = 256;
  const lanes::Floats lowest = lanes::Floats{} + std::numeric_limits<float>::lowest();
  lanes::Floats most = lanes::Floats{} - lanes::kInfinity, least = lanes::Floats{} + lanes::kInfinity;
  int count_low = 0, count_high = 0;
  for_each_register(row, -lanes::kInfinity, [&](lanes::Floats values, int) {
    const lanes::Mask finite = lanes::at_least(values, lowest);
    most = lanes::larger(most, values);
    least = lanes::smaller(least, lanes::select(finite, values, least));
    count_low += __builtin_popcount(finite);
  });
  if (count_low <= k) return lowest[0];
  float low = lanes::smallest_of(least), high = std::nextafter(lanes::largest_of(most), lanes::kInfinity);
  while (count_low - count_high > kFew) {  // at least k values are >= low, fewer than k are >= high
    const float middle = low + (high - low) / 2;
    if (!(low < middle && middle < high)) return low;  // neighbours: all values between are equal
    const float lower = low + (middle - low) / 2, upper = middle + (high - middle) / 2;
    int counts[3] = {};
    for_each_register(row, -lanes::kInfinity, [&](lanes::Floats values, int) {
      counts[0] += __builtin_popcount(lanes::at_least(values, lanes::Floats{} + lower));
      counts[1] += __builtin_popcount(lanes::at_least(values, lanes::Floats{} + middle));
      counts[2] += __builtin_popcount(lanes::at_least(values, lanes::Floats{} + upper));
    });
    const float cuts[3] = {lower, middle, upper};
    for (int i = 0; i < 3; i++) {
      if (counts[i] >= k) {
        low = cuts[i];
        count_low = counts[i];
      } else if (cuts[i] < high) {
        high = cuts[i];
        count_high = counts[i];
      }
    }
  }
  float few[kFew] = {};
  int num_few = 0;
  for_each_register(row, -lanes::kInfinity, [&](lanes::Floats values, int) {
    lanes::Mask mask = lanes::at_least(values, lanes::Floats{} + low) & ~lanes::at_least(values, lanes::Floats{} + high);
    for (; mask; mask &= mask - 1) few[num_few++] = values[__builtin_ctz(mask)];
  });
  float* place = few + (k - count_high - 1);
  std::nth_element(few, place, few + num_few, [](float a, float b) { return a > b; });
  return *place;
}

}  // namespace tokenbus
