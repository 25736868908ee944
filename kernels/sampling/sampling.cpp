#include "kernels/sampling/sampling.h"

#include <climits>
#include <vector>

#include "kernels/native/team.h"
#include "kernels/sampling/passes.h"
#include "kernels/sampling/philox.h"

namespace tokenbus {
namespace {

// What a thread keeps between rows, so that none is allocated.
struct Scratch {
  std::vector<float> raw;            // [vocabulary] log-probabilities
  std::vector<float> allowed;        // logits of the allowed ids
  std::vector<int32_t> num_outputs;  // [vocabulary], all 0 between rows
};
thread_local Scratch scratch;

constexpr int64_t kNobody = INT64_MIN;

// The first id that is no token of the row, or kNobody.
int64_t find_stranger(int vocab_size, const RowParameters& parameters) {
  const auto outside = [vocab_size](int64_t id) { return id < 0 || id >= vocab_size; };
  const int64_t* bad = parameters.ids + parameters.num_allowed;
  const int64_t* early = bad + parameters.num_bad;
  const int64_t* biased = early + parameters.num_early;
  const int num_early = parameters.position < parameters.min_tokens ? parameters.num_early : 0;
  const struct {
    const int64_t* ids;
    int count;
  } lists[] = {{biased, parameters.num_biased},
               {parameters.ids, parameters.num_allowed},
               {bad, parameters.num_bad},
               {early, num_early}};
  for (const auto& list : lists)
    for (int i = 0; i < list.count; i++)
      if (outside(list.ids[i])) return list.ids[i];
  for (int i = 0; i < parameters.num_history; i++)
    if (outside(parameters.history[i])) return parameters.history[i];
  return kNobody;
}

void penalize(const Row& row, const RowParameters& parameters) {
  constexpr int32_t kDone = -1;
  std::vector<int32_t>& num_outputs = scratch.num_outputs;
  if (num_outputs.size() < static_cast<size_t>(row.size)) num_outputs.resize(row.size);
  const int32_t* history = parameters.history;
  for (int i = parameters.num_prompt; i < parameters.num_history; i++) num_outputs[history[i]]++;
  const float repetition = parameters.repetition_penalty;
  for (int i = 0; i < parameters.num_history; i++) {
    int32_t& count = num_outputs[history[i]];
    if (count == kDone) continue;
    float value = row.values[history[i]];
    value = value > 0 ? value / repetition : value * repetition;
    if (count > 0) {
      value -= static_cast<float>(parameters.frequency_penalty * count);
      value -= static_cast<float>(parameters.presence_penalty);
    }
    row.values[history[i]] = value;
    count = kDone;
  }
  for (int i = 0; i < parameters.num_history; i++) num_outputs[history[i]] = 0;
}

// Masks, bias and penalties, in this order. Whether there are any.
bool modify(const Row& row, const RowParameters& parameters) {
  const int64_t* ids = parameters.ids;
  if (parameters.num_allowed > 0) {
    std::vector<float>& allowed = scratch.allowed;
    allowed.clear();
    for (int i = 0; i < parameters.num_allowed; i++) allowed.push_back(row.values[ids[i]]);
    std::fill_n(row.values, row.size, -lanes::kInfinity);
    for (int i = 0; i < parameters.num_allowed; i++) row.values[ids[i]] = allowed[i];
  }
  if (parameters.grammar != nullptr) {
    for (int token = 0; token < row.size; token++)
      if (!(parameters.grammar[token / 32] >> token % 32 & 1)) row.values[token] = -lanes::kInfinity;
  }
  ids += parameters.num_allowed;
  const bool is_early = parameters.position < parameters.min_tokens;
  const int num_blocked = parameters.num_bad + (is_early ? parameters.num_early : 0);
  for (int i = 0; i < num_blocked; i++) row.values[ids[i]] = -lanes::kInfinity;
  ids += parameters.num_bad + parameters.num_early;
  for (int i = 0; i < parameters.num_biased; i++) row.values[ids[i]] += parameters.biases[i];
  if (parameters.num_history > 0) penalize(row, parameters);
  return parameters.num_allowed + num_blocked + parameters.num_biased + parameters.num_history > 0 ||
         parameters.grammar != nullptr;
}

// values = (values - largest) / temperature
void scale(const Row& row, float largest, float temperature) {
  for_each_register(row, largest, [&](lanes::Floats values, int first) {
    lanes::Floats scaled = values - largest;
    if (temperature != 1) scaled /= lanes::Floats{} + temperature;
    lanes::store_some(row.values + first, scaled, row.size - first);
  });
}

// Of the tokens before a place the one whose value + noise is the largest, the lowest among equals. likeliest is one of
// them; its key, known at once, spares most others the logarithms and many the random numbers.
int draw(const Row& row, const Philox& philox, const Place& place, int likeliest) {
  float best_key = row.values[likeliest] + gumbel(philox.word(likeliest));
  int best = likeliest;
  constexpr int kRegisters = 2 * kChains;
  for (int first = 0; first < row.size; first += kBatch) {
    lanes::Floats values[kRegisters];
    lanes::Mask masks[kRegisters], any = 0;
    for (int i = 0; i < kRegisters; i++) {
      const int begin = first + i * lanes::kLanes;
      values[i] = lanes::load_some(row.values + begin, row.size - begin, -lanes::kInfinity);
      masks[i] = before(values[i], begin, place) & lanes::at_least(values[i], lanes::Floats{} + (best_key - kMaxGumbel));
      any |= masks[i];
    }
    if (!any) continue;
    lanes::Ints words[kRegisters];
    philox.words(first, words);
    for (int i = 0; i < kRegisters; i++) {
      lanes::Mask mask = masks[i] & lanes::at_least(values[i] + gumbel_bound(words[i]), lanes::Floats{} + best_key);
      for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask), token = first + i * lanes::kLanes + lane;
        const float key = values[i][lane] + gumbel(static_cast<uint32_t>(words[i][lane]));
        if (key > best_key || (key == best_key && token < best)) {
          best_key = key;
          best = token;
        }
      }
    }
  }
  return best;
}

// Whether the tokens before this one hold less than top_p of the mass of all before `end`.
bool in_nucleus(const Row& row, const Place& end, const Place& token, double top_p) {
  constexpr double kDoubt = 1e-5;  // more than the error of single precision
  Masses mass = masses<lanes::Floats>(row, end, token);
  if (std::abs(mass.before - top_p * mass.all) <= kDoubt * mass.all) mass = masses<lanes::Doubles>(row, end, token);
  return mass.before < top_p * mass.all;
}

// Draws from logits / temperature, of which the largest, that of `likeliest`, is 0.
//
// top_p needs no sorting: the token that wins among all tokens, if it is one of the nucleus, also wins in the nucleus;
// and it is one if the tokens before it hold less than top_p. If it is not, the nucleus lies before it, and so on.
int draw_filtered(const Row& row, const RowParameters& parameters, int likeliest) {
  float least = std::max(parameters.least, std::numeric_limits<float>::lowest());
  if (0 < parameters.top_k && parameters.top_k < row.size) least = std::max(least, kth_largest(row, parameters.top_k));
  const Philox philox(parameters.seed_low, parameters.seed_high, static_cast<uint32_t>(parameters.position));
  const Place end{least, INT_MAX};
  int token = draw(row, philox, end, likeliest);
  if (parameters.top_p >= 1) return token;
  while (token != likeliest) {
    const Place place{row.values[token], token};
    if (in_nucleus(row, end, place, parameters.top_p)) break;
    token = draw(row, philox, place, likeliest);
  }
  return token;
}

// raw = log-softmax of the logits, of which this is the largest; finite, also where a distance between logits is not
void log_softmax(const Row& row, float most, const Row& raw) {
  const lanes::Floats lowest = lanes::Floats{} + std::numeric_limits<float>::lowest();
  for_each_register(row, most, [&](lanes::Floats values, int first) {
    lanes::store_some(raw.values + first, lanes::larger(values - most, lowest), row.size - first);
  });
  const Place everything{-lanes::kInfinity, INT_MAX};
  const float log_mass = static_cast<float>(std::log(masses<lanes::Floats>(raw, everything, everything).all));
  for_each_register(raw, 0, [&](lanes::Floats values, int first) {
    lanes::store_some(raw.values + first, values - log_mass, row.size - first);
  });
}

void report(const Row& raw, int num_top, RowResult& result) {
  result.logprob = raw.values[result.token];
  result.rank = 1;
  for_each_register(raw, -lanes::kInfinity, [&](lanes::Floats values, int) {
    result.rank += __builtin_popcount(lanes::above(values, lanes::Floats{} + result.logprob));
  });
  num_top = std::min(num_top, raw.size);
  if (num_top == 0) return;
  const float least = kth_largest(raw, num_top);
  int num_above = 0, num_found = 0;
  for (const bool want_equals : {false, true}) {  // those above the last value, then its lowest ids
    for_each_register(raw, -lanes::kInfinity, [&](lanes::Floats values, int first) {
      const lanes::Floats last = lanes::Floats{} + least;
      lanes::Mask mask = want_equals ? lanes::equal(values, last) : lanes::above(values, last);
      for (; mask && num_found < num_top; mask &= mask - 1)
        result.top_ids[num_found++] = first + __builtin_ctz(mask);
    });
    if (!want_equals) num_above = num_found;
  }
  std::stable_sort(result.top_ids, result.top_ids + num_above,
                   [&](int a, int b) { return raw.values[a] > raw.values[b]; });
  for (int i = 0; i < num_top; i++) result.top_logprobs[i] = raw.values[result.top_ids[i]];
}

}  // namespace

void sample_row(float* logits, int vocab_size, const RowParameters& parameters, RowResult& result) {
  const Row row{logits, vocab_size};
  result.status = kNotFinite;
  Look look = look_at(row);
  if (!look.is_finite) return;
  result.status = kIdOutOfRange;
  result.stranger = find_stranger(vocab_size, parameters);
  if (result.stranger != kNobody) return;
  Row raw{nullptr, vocab_size};
  if (parameters.num_logprobs >= 0) {
    if (scratch.raw.size() < static_cast<size_t>(vocab_size)) scratch.raw.resize(vocab_size);
    raw.values = scratch.raw.data();
    log_softmax(row, look.largest, raw);
  }
  if (modify(row, parameters)) look = look_at(row);
  result.status = kNothingLeft;
  if (!std::isfinite(look.largest)) return;
  result.token = find(row, look.largest);
  if (result.token < 0) return;
  if (!parameters.is_greedy) {
    scale(row, look.largest, parameters.temperature);
    result.token = draw_filtered(row, parameters, result.token);
  }
  if (raw.values) report(raw, parameters.num_logprobs, result);
  result.status = kSampled;
}

}  // namespace tokenbus

extern "C" {

// Row i of the logits, [count, vocab_size], belongs to parameters[rows[i]] and results[rows[i]].
void tokenbus_sample(tokenbus::Team* team, float* logits, int32_t vocab_size,
                     const tokenbus::RowParameters* parameters, tokenbus::RowResult* results, const int32_t* rows,
                     int32_t count) {
  const auto sample = [&](int i) {
    tokenbus::sample_row(logits + static_cast<size_t>(i) * vocab_size, vocab_size, parameters[rows[i]],
                         results[rows[i]]);
  };
  if (count == 1) return sample(0);
  team->run([&](tokenbus::Member& member) { member.share(count, sample); });
}
}
