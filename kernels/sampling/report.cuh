// Log-probabilities of a row's token and of its likeliest ones, from the logits as they came.
#pragma once
#include "kernels/sampling/select.cuh"

namespace tokenbus {

// A negative log-probability: that of the token at a distance below the largest logit. Finite, also where that is not:
// each of a row's tokens can be listed.
struct Loss {
  float most, log_mass;

  __device__ __forceinline__ float operator()(float logit) const { return fminf(most - logit + log_mass, -kLowest); }
};

// Where a row's report goes.
struct Report {
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;     // [num_top]
  float* top_logprobs;  // [num_top]
};

template <class T>
static __device__ __forceinline__ float log_mass(const Row<T>& raw, float most, BlockMemory& memory) {
  float mass = 0;
  for_each_chunk<1>(raw, [&](int, float (&values)[kChunk]) {
#pragma unroll
    for (int k = 0; k < kChunk; k++) mass += expf(values[k] - most);
  });
  return static_cast<float>(log(sum_of_block(mass, memory)));
}

// Orders the entries, key in the high half, token in the low one, and writes them out.
static __device__ __forceinline__ void write_top(const uint64_t* listed, int num_top, const Report& report) {
  for (int i = threadIdx.x; i < num_top; i += kSampleThreads) {
    int place = 0;
    for (int other = 0; other < num_top; other++) place += listed[other] < listed[i];
    report.top_ids[place] = static_cast<int32_t>(listed[i]);
    report.top_logprobs[place] = -__uint_as_float(static_cast<uint32_t>(listed[i] >> 32));
  }
}

// raw: the row as it came. listed: shared memory for num_top entries, num_top at most the row's size.
template <class T>
static __device__ __forceinline__ void make_report(const Row<T>& raw, float most, int token, int num_top,
                                                   const Report& report, uint64_t* listed, BlockMemory& memory) {
  const Loss loss{most, log_mass(raw, most, memory)};
  const auto key_of = [&](float logit) { return key_of_distance(loss(logit)); };
  const uint32_t chosen = key_of(raw.logit(token));
  const Cut cut = num_top > 0 ? cut_after(raw, num_top, true, memory, key_of) : Cut{0, -1};
  if (threadIdx.x == 0) memory.num_listed = 0;
  __syncthreads();
  int num_likelier = 0;
  for_each_chunk<1>(raw, [&](int first, float (&values)[kChunk]) {
#pragma unroll
    for (int k = 0; k < kChunk; k++) {
      const uint32_t key = key_of(values[k]);
      num_likelier += key < chosen;
      if (key < cut.key || (key == cut.key && first + k <= cut.token))
        listed[atomicAdd(&memory.num_listed, 1u)] = static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(first + k);
    }
  });
  const int rank = 1 + join_block(num_likelier, memory, [](int a, int b) { return a + b; });
  write_top(listed, num_top, report);
  if (threadIdx.x == 0) {
    *report.logprob = -__uint_as_float(chosen);
    *report.rank = rank;
  }
}

}  // namespace tokenbus
