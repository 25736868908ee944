// Memory of a step's activations: claimed once, so that a step allocates nothing.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/decoder/decoder.h"

namespace tokenbus {

struct Free {
  void operator()(void* memory) const { free(memory); }
};

// Memory on a cache line's boundary, untouched: pages that no step needs are never claimed from the system.
template <class Value>
class Buffer {
 public:
  explicit Buffer(size_t count)
      : memory_(static_cast<Value*>(aligned_alloc(64, (count * sizeof(Value) + 63) / 64 * 64))) {}
  Value* get() const { return memory_.get(); }

 private:
  std::unique_ptr<Value, Free> memory_;
};

struct Workspace {
  explicit Workspace(const Decoder& d)
      : residual(tokens(d) * d.hidden_size),
        normed(tokens(d) * d.hidden_size),
        heads(tokens(d) * (d.num_heads + 2 * d.num_kv_heads) * d.head_dim),
        attended(tokens(d) * d.num_heads * d.head_dim),
        activated(tokens(d) * d.inner_size),
        sampled(static_cast<size_t>(d.max_num_seqs) * d.hidden_size),
        kept_residual(static_cast<size_t>(d.max_num_seqs) * d.hidden_size),
        kept_attended(static_cast<size_t>(d.max_num_seqs) * d.num_heads * d.head_dim),
        codes(tokens(d) * widest(d)),
        scales(tokens(d) * widest(d) / kBlock),
        sums(tokens(d) * widest(d) / kBlock) {}

  // A product's input, and where it goes once quantised.
  Rows rows(const bf16* values) const { return {values, codes.get(), scales.get(), sums.get()}; }

  Buffer<float> residual;  // [T][hidden]
  Buffer<bf16> normed;     // [T][hidden]
  Buffer<bf16> heads;      // [T][(H + 2 K) D]
  Buffer<bf16> attended;   // [T][H D]
  Buffer<bf16> activated;  // [T][inner]
  Buffer<bf16> sampled;    // [R][hidden]
  Buffer<float> kept_residual;  // [R][hidden], of sampled rows
  Buffer<bf16> kept_attended;   // [R][H D]
  Buffer<uint8_t> codes;   // [T][widest input], a product's input quantised
  Buffer<float> scales, sums;

 private:
  static size_t tokens(const Decoder& d) { return d.max_num_tokens; }
  static size_t widest(const Decoder& d) {
    return std::max({d.hidden_size, d.num_heads * d.head_dim, d.inner_size});
  }
};

}  // namespace tokenbus
