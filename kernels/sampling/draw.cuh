// A token drawn from logits / temperature: the one whose value + noise is the largest, of those that min_p, top_k and
// top_p leave.
#pragma once
#include "kernels/sampling/device_row.cuh"
#include "kernels/sampling/philox.cuh"
#include "kernels/sampling/select.cuh"

namespace tokenbus {

// (value - largest) / temperature
struct Scale {
  float largest, temperature;

  __device__ __forceinline__ float operator()(float value) const { return (value - largest) / temperature; }
  __device__ __forceinline__ float of_distance(float distance) const { return -distance / temperature; }

  // Whether a value may come out at `least` < 0 or above; no for most that do not, and it costs no division.
  __device__ __forceinline__ bool may_reach(float value, float least) const {
    return value - largest >= least * temperature * (1 + 1e-6f);
  }
};

template <class T>
struct Drawing {
  const Row<T>& row;
  const Scale scale;
  const Philox philox;
  const Place likeliest;  // its scaled value is 0
  BlockMemory& memory;
};

// Scales the values of a chunk; -infinity for the tokens that are not before a place. False if none is, or if the
// largest is below `least`.
template <class T>
static __device__ __forceinline__ bool scale_chunk(const Drawing<T>& drawing, int first, float (&values)[kChunk],
                                                   const Place& end, float least) {
  drawing.row.modify(first, values);
  float largest = values[0];
#pragma unroll
  for (int k = 1; k < kChunk; k++) largest = fmaxf(largest, values[k]);
  if (!drawing.scale.may_reach(largest, fmaxf(least, end.value))) return false;
  largest = -infinity();
#pragma unroll
  for (int k = 0; k < kChunk; k++) {
    values[k] = drawing.scale(values[k]);
    if (!end.is_after(values[k], first + k)) values[k] = -infinity();
    largest = fmaxf(largest, values[k]);
  }
  return largest >= least && largest > -infinity();
}

// Of the tokens before a place the one with the largest key, the lowest among equals. The likeliest, one of them, has a
// key known at once: it spares most others the logarithms and many the random numbers.
template <class T>
static __device__ __forceinline__ int draw_before(const Drawing<T>& drawing, const Place& end) {
  Place best{gumbel(drawing.philox.word(drawing.likeliest.token)), drawing.likeliest.token};
  for_each_chunk<1>(drawing.row, [&](int first, float (&values)[kChunk]) {
    if (!scale_chunk(drawing, first, values, end, best.value - kMaxGumbel)) return;
#pragma unroll
    for (int begin = 0; begin < kChunk; begin += 4) {
      const float largest = fmaxf(fmaxf(values[begin], values[begin + 1]), fmaxf(values[begin + 2], values[begin + 3]));
      if (!(largest >= best.value - kMaxGumbel)) continue;
      uint32_t words[4];
      drawing.philox.words((first + begin) / 4, words);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float value = values[begin + k];
        if (!(value + gumbel_bound(words[k]) >= best.value)) continue;
        const float key = __fadd_rn(value, gumbel(words[k]));
        if (best.is_after(key, first + begin + k)) best = {key, first + begin + k};
      }
    }
  });
  return first_of_block(best, drawing.memory).token;
}

struct Masses {
  double all, before;
};

static __device__ __forceinline__ float mass_of(float value, float) { return expf(value); }
// Rare and long: kept out of the loops that call it.
static __device__ __attribute__((noinline)) double mass_of(float value, double) { return exp(static_cast<double>(value)); }

// Sums of e^value over the tokens before `end`, and over those of them before `place`. With a relative error under 3e-6
// if Real is float.
template <class Real, class T>
static __device__ __forceinline__ Masses masses(const Drawing<T>& drawing, const Place& end, const Place& place) {
  Real all = 0, before = 0;
  for_each_chunk<1>(drawing.row, [&](int first, float (&values)[kChunk]) {
    if (!scale_chunk(drawing, first, values, end, -80.0f)) return;
#pragma unroll
    for (int k = 0; k < kChunk; k++) {
      if (values[k] == -infinity()) continue;
      const Real mass = mass_of(values[k], Real{});
      all += mass;
      if (place.is_after(values[k], first + k)) before += mass;
    }
  });
  const double sum = sum_of_block(all, drawing.memory);
  return {sum, sum_of_block(before, drawing.memory)};
}

// Whether the tokens before this one hold less than top_p of the mass of all before `end`.
template <class T>
static __device__ __forceinline__ bool in_nucleus(const Drawing<T>& drawing, const Place& end, const Place& token,
                                                  double top_p) {
  constexpr double kDoubt = 1e-5;  // more than the error of single precision
  Masses mass = masses<float>(drawing, end, token);
  if (fabs(mass.before - top_p * mass.all) <= kDoubt * mass.all) mass = masses<double>(drawing, end, token);
  return mass.before < top_p * mass.all;
}

// top_p needs no sorting: the token that wins among all tokens, if it is one of the nucleus, also wins in the nucleus;
// and it is one if the tokens before it hold less than top_p. If it is not, the nucleus lies before it, and so on.
template <class T>
static __device__ __forceinline__ int draw(const Row<T>& row, const DeviceRow& parameters, const Place& likeliest,
                                           BlockMemory& memory) {
  const Scale scale{likeliest.value, parameters.temperature};
  float least = fmaxf(parameters.least, kLowest);
  if (0 < parameters.top_k && parameters.top_k < row.size) {
    const Cut cut = cut_after(row, parameters.top_k, false, memory,
                              [&](float value) { return key_of_distance(scale.largest - value); });
    if (cut.key != kLastKey) least = fmaxf(least, scale.of_distance(__uint_as_float(cut.key)));
  }
  const Philox philox{static_cast<uint32_t>(parameters.position), parameters.seed_low, parameters.seed_high};
  const Drawing<T> drawing{row, scale, philox, likeliest, memory};
  const Place end{least, kNoToken};
  Place place = end;
#pragma unroll 1
  for (;;) {
    const int token = draw_before(drawing, place);
    if (parameters.top_p >= 1 || token == likeliest.token) return token;
    place = {scale(row.value(token)), token};
    if (in_nucleus(drawing, end, place, parameters.top_p)) return token;
  }
}

}  // namespace tokenbus
