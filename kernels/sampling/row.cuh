// A row of logits, as it came and as masks, bias and penalties leave it.
//
// The logits are never written. What the few tokens with a bias or a penalty have instead lies in a table, which is
// looked up where a bit says so; so a pass costs what reading the logits costs.
#pragma once
#include "kernels/sampling/order.cuh"

namespace tokenbus {

constexpr int kChunk = 8;  // tokens that a thread looks at together: a byte of a mask, two of Philox's counters

template <class T>
struct Row {
  const T* logits;
  int size;
  bool is_aligned;         // whether the logits begin at a multiple of 16 bytes
  const uint32_t* mask;    // bit i % 32 of word i / 32 allows token i; null: all are allowed
  const uint32_t* edited;  // bits of the tokens whose value is among the edits; null: none
  const int32_t* edits;    // [size] bits of floats

  __device__ __forceinline__ float logit(int token) const { return to_float<T>(logits[token]); }
  __device__ __forceinline__ float edit(int token) const { return __int_as_float(edits[token]); }

  // Of a token that may be sampled.
  __device__ __forceinline__ float value(int token) const {
    return edited != nullptr && edited[token / 32] >> token % 32 & 1 ? edit(token) : logit(token);
  }

  // As they came.
  __device__ __forceinline__ Row raw() const { return {logits, size, is_aligned, nullptr, nullptr, nullptr}; }

  // Values of a chunk: what may not be sampled becomes -infinity, what is edited its edit.
  __device__ __forceinline__ void modify(int first, float (&values)[kChunk]) const {
    if (edited != nullptr) {
      const uint32_t bits = reinterpret_cast<const uint8_t*>(edited)[first / kChunk];
      if (bits != 0) {
#pragma unroll
        for (int k = 0; k < kChunk; k++)
          if (bits >> k & 1) values[k] = edit(first + k);
      }
    }
    if (mask != nullptr) {
      const uint32_t allowed = __ldg(reinterpret_cast<const uint8_t*>(mask) + first / kChunk);
#pragma unroll
      for (int k = 0; k < kChunk; k++)
        if (!(allowed >> k & 1) || first + k >= size) values[k] = -infinity();
    }
  }
};

// The logits of a chunk as they lie in memory, -infinity beyond the row.
template <class T>
struct PackedChunk {
  static constexpr int kParts = kChunk / kNumbers<T>;
  uint4 parts[kParts];

  __device__ __forceinline__ void load(const Row<T>& row, int first) {
    if (row.is_aligned && first + kChunk <= row.size) {
#pragma unroll
      for (int part = 0; part < kParts; part++) parts[part] = load_16(row.logits + first + part * kNumbers<T>);
      return;
    }
    T each[kChunk];
#pragma unroll
    for (int k = 0; k < kChunk; k++)
      each[k] = first + k < row.size ? row.logits[first + k] : from_float<T>(-infinity());
    memcpy(parts, each, sizeof parts);
  }

  __device__ __forceinline__ void unpack(float (&values)[kChunk]) const {
#pragma unroll
    for (int part = 0; part < kParts; part++) {
      float some[kNumbers<T>];
      unpack_16<T>(parts[part], some);
#pragma unroll
      for (int k = 0; k < kNumbers<T>; k++) values[part * kNumbers<T> + k] = some[k];
    }
  }
};

// Calls visit(first token, float (&logits)[kChunk]) for the chunks of this thread, kAhead of which are under way at
// once. Which thread has which chunk depends on nothing but the chunk.
template <int kAhead, class T, class Visit>
static __device__ __forceinline__ void for_each_chunk(const Row<T>& row, Visit&& visit) {
  constexpr int kStep = kSampleThreads * kChunk;
  for (int begin = threadIdx.x * kChunk; begin < row.size; begin += kAhead * kStep) {
    PackedChunk<T> chunks[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++)
      if (begin + i * kStep < row.size) chunks[i].load(row, begin + i * kStep);
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      if (begin + i * kStep >= row.size) break;
      float values[kChunk];
      chunks[i].unpack(values);
      visit(begin + i * kStep, values);
    }
  }
}

struct Look {
  bool is_finite;    // whether all logits are
  float most;        // the largest logit
  Place likeliest;   // of the modified row; its value is -infinity if nothing may be sampled
};

template <class T>
static __device__ __forceinline__ Look look_at(const Row<T>& row, BlockMemory& memory) {
  constexpr uint32_t kBroken = 0xffffffffu;
  constexpr int kAhead = sizeof(T) == 2 ? 4 : 2;
  Place likeliest{-infinity(), kNoToken};
  uint32_t most = 0;
  for_each_chunk<kAhead>(row, [&](int first, float (&values)[kChunk]) {
    float largest = -infinity();
#pragma unroll
    for (int k = 0; k < kChunk; k++) {
      const bool is_finite = (__float_as_uint(values[k]) & 0x7fffffffu) < 0x7f800000u;
      if (!is_finite && first + k < row.size) most = kBroken;
      largest = fmaxf(largest, values[k]);
    }
    most = max(most, to_order(largest));
    row.modify(first, values);
#pragma unroll
    for (int k = 0; k < kChunk; k++)
      if (values[k] > likeliest.value) likeliest = {values[k], first + k};  // ids rise: among equals the first one stays
  });
  most = largest_of_block(most, memory);
  return {most != kBroken, from_order(most), first_of_block(likeliest, memory)};
}

}  // namespace tokenbus
