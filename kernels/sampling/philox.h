// Philox4x32-10 (see the package's docstring), for one token and for two registers of tokens at once.
#pragma once
#include <cmath>

#include "kernels/sampling/lanes.h"

namespace tokenbus {

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxFactor0 = 0xD2511F53, kPhiloxFactor2 = 0xCD9E8D57;

constexpr int kChains = 4;
constexpr int kBatch = kChains * 2 * lanes::kLanes;

// The random numbers of one seed at one output position.
struct Philox {
  uint32_t position;
  lanes::Longs keys[kPhiloxRounds][2];  // the same number in every lane

  Philox(uint32_t seed_low, uint32_t seed_high, uint32_t position) : position(position) {
    for (uint32_t round = 0; round < kPhiloxRounds; round++) {
      keys[round][0] = lanes::Longs{} + (seed_low + round * 0x9E3779B9);
      keys[round][1] = lanes::Longs{} + (seed_high + round * 0xBB67AE85);
    }
  }

  uint32_t word(uint32_t token) const {
    uint32_t c[4] = {token / 4, position, 0, 0};
    for (const auto& key : keys) {
      const uint64_t first = uint64_t{c[0]} * kPhiloxFactor0, second = uint64_t{c[2]} * kPhiloxFactor2;
      c[0] = static_cast<uint32_t>(second >> 32) ^ c[1] ^ static_cast<uint32_t>(key[0][0]);
      c[1] = static_cast<uint32_t>(second);
      c[2] = static_cast<uint32_t>(first >> 32) ^ c[3] ^ static_cast<uint32_t>(key[1][0]);
      c[3] = static_cast<uint32_t>(first);
    }
    return c[token % 4];
  }

  // Words of kBatch tokens from `first` on, a multiple of 4.
  //
  // A 64-bit lane holds one of a counter's four words in its low half; what the products leave in the high half is
  // never looked at. Neighbouring lanes hold counters a register apart, so that pairing the words up in the end leaves
  // the tokens in order. Every round waits for the one before; kChains of them side by side keep the multipliers busy.
  void words(uint32_t first, lanes::Ints (&out)[2 * kChains]) const {
    using lanes::Longs;
#ifdef __AVX512F__
    const Longs steps = {0, 4, 1, 5, 2, 6, 3, 7};
#else
    const Longs steps = {0, 2, 1, 3};
#endif
    Longs c[kChains][4] = {};
    for (int chain = 0; chain < kChains; chain++) {
      c[chain][0] = steps + (first / 4 + chain * lanes::kLanes / 2);
      c[chain][1] = Longs{} + position;
    }
    const Longs factor0 = Longs{} + kPhiloxFactor0, factor2 = Longs{} + kPhiloxFactor2;
#pragma GCC unroll 10
    for (const auto& key : keys) {
#pragma GCC unroll 4
      for (auto& state : c) {
        const Longs first_product = lanes::multiply(state[0], factor0);
        const Longs second_product = lanes::multiply(state[2], factor2);
        state[0] = (second_product >> 32) ^ state[1] ^ key[0];
        state[1] = second_product;
        state[2] = (first_product >> 32) ^ state[3] ^ key[1];
        state[3] = first_product;
      }
    }
    const Longs low = Longs{} + 0xFFFFFFFF;
    for (int chain = 0; chain < kChains; chain++) {
      const Longs first_pair = (c[chain][0] & low) | (c[chain][1] << 32);
      const Longs second_pair = (c[chain][2] & low) | (c[chain][3] << 32);
      out[2 * chain] = (lanes::Ints)lanes::interleave_low(first_pair, second_pair);
      out[2 * chain + 1] = (lanes::Ints)lanes::interleave_high(first_pair, second_pair);
    }
  }
};

// The noise that a random word stands for, rounded to float32 where the reference rounds.
static inline float gumbel(uint32_t word) {
  float uniform = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  uniform = uniform < 1 - 0x1p-24f ? uniform : 1 - 0x1p-24f;
  const float exponential = static_cast<float>(-std::log1p(-static_cast<double>(uniform)));
  return static_cast<float>(-std::log(static_cast<double>(exponential)));
}

constexpr float kMaxGumbel = 22.9f;  // -ln(2^-33) is 22.87

// At least the noise of these words, by some hundredths where it is large: -ln(-ln(1 - u)) <= -ln u, and the bits of a
// float, read as an integer, are its binary logarithm from below.
static inline lanes::Floats gumbel_bound(lanes::Ints words) {
  const lanes::Ints half = words >> 1 & 0x7FFFFFFF;
  const lanes::Floats bits = lanes::to_floats((lanes::Ints)lanes::to_floats(half));
  constexpr float kLn2 = 0.69314718f, kSlack = 1e-3f;
  return (158 * kLn2 + kSlack) - bits * (kLn2 * 0x1p-23f);
}

}  // namespace tokenbus
