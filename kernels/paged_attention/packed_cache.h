// The paged KV cache of one layer as the C++ kernels keep it, packed for products of pairs.
//
//     keys    bf16 [blocks][K kv heads][block_size / 16][head_dim / 2][16 tokens][2 neighbours of a head]
//     values  bf16 [blocks][K kv heads][block_size / 2 pairs of tokens][head_dim][2 tokens]
//
// So 16 tokens of one head, a tile, are 16 * head_dim elements in one piece in both, and a slot's tile begins at the same
// place in both. A register of 16 lanes with two bf16 each holds two neighbours of 16 keys (their products with a
// query's pair add up to 16 scores), or two tokens of 16 columns (with a pair of weights, to 16 outputs).
#pragma once
#include <cstddef>
#include <cstdint>

namespace tokenbus {

constexpr int kTileTokens = 16;

struct CacheShape {
  int32_t block_size;  // tokens, a multiple of 16
  int32_t num_kv_heads;
  int32_t head_dim;  // a multiple of 16, at most 256

  // Element at which the tile of tokens [offset, offset + 16) of a block begins; offset in tokens, a multiple of 16.
  size_t tile(int64_t block, int kv_head, int offset) const {
    return ((static_cast<size_t>(block) * num_kv_heads + kv_head) * block_size + offset) * head_dim;
  }
};

}  // namespace tokenbus
