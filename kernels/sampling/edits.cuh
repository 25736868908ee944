// Bias and penalties: what the tokens that they concern have in place of their logits.
//
// Histories come as token ids, a step's worth from the host: a table of counts kept for each sequence would be as large
// as the vocabulary, and wrong as soon as a sequence is preempted or moves to another row. They are counted anew each
// step, in the very cells that then hold the edits; counts are integers, so the order of counting does not matter.
#pragma once
#include "kernels/sampling/device_row.cuh"
#include "kernels/sampling/row.cuh"

namespace tokenbus {

// The row's own part of what all rows bring along.
struct EditLists {
  const int32_t* history;  // [num_history]
  const int32_t* biased;   // [num_biases] token ids, each once
  const float* biases;     // [num_biases]
};

// Products and sums are rounded one by one, as on the CPU: fused, equal values could cease to be equal.
static __device__ __forceinline__ float penalize(float value, int num_outputs, const DeviceRow& row) {
  value = value > 0 ? value / row.repetition_penalty : __fmul_rn(value, row.repetition_penalty);
  if (num_outputs > 0) {
    value = __fadd_rn(value, -static_cast<float>(row.frequency_penalty * num_outputs));
    value = __fadd_rn(value, -static_cast<float>(row.presence_penalty));
  }
  return value;
}

static __device__ __forceinline__ void set_bit(uint32_t* bits, int token) {
  atomicOr(&bits[token / 32], 1u << token % 32);
}

// Whether the bit was set: of all threads that take it, one alone is told so.
static __device__ __forceinline__ bool take_bit(uint32_t* bits, int token) {
  const uint32_t bit = 1u << token % 32;
  return (atomicAnd(&bits[token / 32], ~bit) & bit) != 0;
}

// The first of the ids that is no token of the row, and whether there is one.
static __device__ __forceinline__ bool find_stranger(const int32_t* ids, int count, int size, int32_t& stranger,
                                                     BlockMemory& memory) {
  int first = count;
  for (int i = threadIdx.x; i < count; i += kSampleThreads)
    if (ids[i] < 0 || ids[i] >= size) first = min(first, i);
  first = -largest_of_block(-first, memory);
  if (first < count) stranger = ids[first];
  return first < count;
}

// cells: [row.size], edited: [ceil(row.size / 32)], both with whatever they held before. All ids are tokens of the row.
template <class T>
static __device__ __forceinline__ void make_edits(const Row<T>& row, const DeviceRow& parameters, const EditLists& lists,
                                                  int32_t* cells, uint32_t* edited) {
  const int num_history = parameters.num_history, num_biases = parameters.num_biases;
  for (int word = threadIdx.x; word < (row.size + 31) / 32; word += kSampleThreads) edited[word] = 0;
  for (int i = threadIdx.x; i < num_history; i += kSampleThreads) atomicExch(&cells[lists.history[i]], 0);
  __syncthreads();
  for (int i = threadIdx.x; i < num_history; i += kSampleThreads) {
    const int token = lists.history[i];
    set_bit(edited, token);
    if (i >= parameters.num_prompt) atomicAdd(&cells[token], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_biases; i += kSampleThreads) {
    const int token = lists.biased[i];
    float value = __fadd_rn(row.logit(token), lists.biases[i]);
    if (take_bit(edited, token)) value = penalize(value, cells[token], parameters);
    cells[token] = __float_as_int(value);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_history; i += kSampleThreads) {
    const int token = lists.history[i];
    if (take_bit(edited, token)) cells[token] = __float_as_int(penalize(row.logit(token), cells[token], parameters));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_history; i += kSampleThreads) set_bit(edited, lists.history[i]);
  for (int i = threadIdx.x; i < num_biases; i += kSampleThreads) set_bit(edited, lists.biased[i]);
  __syncthreads();
}

}  // namespace tokenbus
