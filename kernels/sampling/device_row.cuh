// How one row is sampled on a device. Mirrored by DeviceRow in kernels/sampling/cuda_rows.py.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

struct DeviceRow {
  double top_p;  // 1: no limit
  double frequency_penalty;
  double presence_penalty;
  int32_t mask;           // the row of masks that says what may be sampled, -1: everything
  int32_t first_history;  // among the ids of all histories
  int32_t num_history;    // of prompt and outputs; 0 if there are no penalties
  int32_t num_prompt;     // of the history
  int32_t first_bias;     // among the biases of all rows
  int32_t num_biases;
  int32_t position;       // of the output
  uint32_t seed_low;
  uint32_t seed_high;
  int32_t is_greedy;
  float temperature;
  float least;            // ln of min_p, -infinity for none
  int32_t top_k;          // 0: all
  float repetition_penalty;
  int32_t num_logprobs;   // alternatives to report; -1: no log-probabilities at all
  int32_t unused;
};
static_assert(sizeof(DeviceRow) == 88);

// What became of a row. kIdOutOfRange: an id of the history is no token; it is given as the row's token.
enum RowStatus : int32_t { kSampled = 0, kNotFinite = 1, kNothingLeft = 2, kIdOutOfRange = 3 };

}  // namespace tokenbus
