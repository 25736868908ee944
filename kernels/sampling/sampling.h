// One token from a row of float32 logits, by the rules of kernels/sampling/__init__.py.
#pragma once
#include <cstdint>

namespace tokenbus {

// How one row is sampled. Mirrored by RowParameters in kernels/sampling/native_rows.py.
struct RowParameters {
  double top_p;              // 1: no limit
  double frequency_penalty;
  double presence_penalty;
  const int64_t* ids;        // num_allowed, num_bad, num_early and num_biased ids, one list after the other
  const float* biases;       // [num_biased]
  const int32_t* history;    // [num_history] ids of prompt and outputs; none if there are no penalties
  const uint32_t* grammar;   // [ceil(vocabulary / 32)], bit i % 32 of word i / 32 allows token i; null: all are allowed
  int32_t num_allowed;       // 0: all tokens are
  int32_t num_bad;
  int32_t num_early;         // EOS and stop ids, blocked while position < min_tokens
  int32_t num_biased;
  int32_t num_history;
  int32_t num_prompt;        // of the history
  int32_t position;          // of the output
  int32_t min_tokens;
  uint32_t seed_low;
  uint32_t seed_high;
  int32_t is_greedy;
  float temperature;
  float least;               // ln of min_p, -infinity for none
  int32_t top_k;             // 0: all
  float repetition_penalty;
  int32_t num_logprobs;      // alternatives to report; -1: no log-probabilities at all
};

enum RowStatus : int32_t { kSampled = 0, kNotFinite = 1, kNothingLeft = 2, kIdOutOfRange = 3 };

// What comes out. Mirrored by RowResult in kernels/sampling/native_rows.py.
struct RowResult {
  int64_t stranger;      // the id, if the status is kIdOutOfRange
  int32_t* top_ids;      // [num_logprobs], room for the likeliest tokens; as many as the vocabulary has are written
  float* top_logprobs;   // likewise
  int32_t token;         // if the status is kSampled
  int32_t status;
  float logprob;         // of the token, raw; if asked for
  int32_t rank;          // 1 + the number of likelier tokens; if asked for
};

// logits: [vocab_size], overwritten. Uses some memory of the thread's own, claimed at its first row.
void sample_row(float* logits, int vocab_size, const RowParameters& parameters, RowResult& result);

}  // namespace tokenbus
