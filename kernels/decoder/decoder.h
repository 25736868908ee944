// A decoder-only transformer and one step of it, as Python lays them out (kernels/decoder/structs.py mirrors each).
//
// T tokens of S sequences, R of them sampled; H query heads, K key/value heads of D values.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

struct Layer {
  const float* attention_norm;  // [hidden]
  const float* query_norm;      // [D], or null: heads are not normalised
  const float* key_norm;        // [D], or null
  const float* feed_forward_norm;
  Linear query_key_value;  // to H query heads, K key heads, K value heads
  Linear output;
  Linear gate_up;  // each panel: 16 columns of the gate, then the same 16 of up
  Linear down;
  int32_t sliding_window;  // tokens seen, itself included; 0: all
};

struct Decoder {
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, inner_size, vocab_size, block_size;
  int32_t max_num_tokens, max_num_seqs;  // of one step
  float eps, scale;
  const Layer* layers;
  const float* final_norm;
  Linear embedding;  // the same weights as lm_head where the model ties them
  Linear lm_head;
  const float* cos_sin;  // [positions][D]: cosines, then sines
  bf16* kv_cache;        // [layers][keys, values][blocks], packed as packed_cache.h says
  int64_t num_blocks;
};

struct Step {
  int32_t num_tokens, num_sequences, num_rows, block_table_stride;
  const int32_t* token_ids;      // [T]
  const int64_t* positions;      // [T]
  const int64_t* slot_mapping;   // [T], -1: not written
  const int32_t* cu_seqlens_q;   // [S + 1]
  const int32_t* context_lens;   // [S]
  const int32_t* block_tables;   // [S][stride]
  const int32_t* row_tokens;     // [R]: which token's logits
  const int32_t* logits_slots;   // [R]: the row of logits to write, or -1: only the likeliest token is wanted
  float* logits;                 // [slots][vocab_size]
  int32_t* likeliest;            // [R]: the token of the largest logit, the lowest id among equals; -1: not all finite
  uint8_t* token_is_finite;      // [T]: whether its keys and values are finite in every layer
};

}  // namespace tokenbus
