// From logits to one token a row, by the rules of kernels/sampling/__init__.py: a block a row.
//
// Blocks know nothing of each other, and within one all sums have a fixed order: a row's token depends on nothing but
// the row. A greedy row without parameters of its own reads its logits once. Any other passes over them a few times, at
// best from the cache: to draw costs one pass, top_p one (for some rows two or three), top_k three, log-probabilities
// two and the likeliest tokens three. Nothing is sorted.
#include "kernels/sampling/draw.cuh"
#include "kernels/sampling/edits.cuh"
#include "kernels/sampling/report.cuh"

namespace tokenbus {

// logits: T [rows][vocab_size], `stride` from row to row, of any alignment, best of 16 bytes. rows: [rows]. masks: [..]
// [ceil(vocab_size / 32)], bit i % 32 of word i / 32 allows token i. histories, biased, biases: where rows say; ids of
// biases are tokens. cells: [rows][vocab_size], scratch. tokens, statuses, logprobs, ranks: [rows]; top_ids,
// top_logprobs: [rows][max_top]. Dynamic shared memory: max_top 8-byte entries, then ceil(vocab_size / 32) words.
template <class T>
__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_rows(const T* logits, int64_t stride, int vocab_size, const DeviceRow* rows, const uint32_t* masks,
                const int32_t* histories, const int32_t* biased, const float* biases, int32_t* cells, int32_t* tokens,
                int32_t* statuses, float* logprobs, int32_t* ranks, int32_t* top_ids, float* top_logprobs, int max_top) {
  __shared__ BlockMemory memory;
  SHARED_MEMORY(uint64_t, listed);
  uint32_t* edited = reinterpret_cast<uint32_t*>(listed + max_top);
  const int index = blockIdx.x;
  const DeviceRow& parameters = rows[index];
  Row<T> row{logits + index * stride, vocab_size, false, nullptr, nullptr, nullptr};
  row.is_aligned = reinterpret_cast<uint64_t>(row.logits) % 16 == 0;
  if (parameters.mask >= 0) row.mask = masks + static_cast<int64_t>(parameters.mask) * ((vocab_size + 31) / 32);

  const EditLists lists{histories + parameters.first_history, biased + parameters.first_bias,
                        biases + parameters.first_bias};
  int32_t token = 0;
  const bool has_stranger = find_stranger(lists.history, parameters.num_history, vocab_size, token, memory);
  if (!has_stranger && parameters.num_history + parameters.num_biases > 0) {
    int32_t* of_row = cells + static_cast<int64_t>(index) * vocab_size;
    make_edits(row, parameters, lists, of_row, edited);
    row.edited = edited;
    row.edits = of_row;
  }

  const Look look = look_at(row, memory);
  const Place& likeliest = look.likeliest;
  int32_t status = kSampled;
  if (!look.is_finite)
    status = kNotFinite;
  else if (has_stranger)
    status = kIdOutOfRange;
  else if (!(-infinity() < likeliest.value && likeliest.value < infinity()))
    status = kNothingLeft;
  if (status == kSampled) {
    token = parameters.is_greedy ? likeliest.token : draw(row, parameters, likeliest, memory);
    if (parameters.num_logprobs >= 0) {
      const int64_t first = static_cast<int64_t>(index) * max_top;
      const Report report{logprobs + index, ranks + index, top_ids + first, top_logprobs + first};
      make_report(row.raw(), look.most, token, min(parameters.num_logprobs, vocab_size), report, listed, memory);
    }
  }
  if (threadIdx.x == 0) {
    tokens[index] = token;
    statuses[index] = status;
  }
}

}  // namespace tokenbus
