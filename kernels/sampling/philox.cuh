// Philox4x32-10 and the noise that it stands for; see the package's docstring.
#pragma once
#include "kernels/cuda/numbers.cuh"

namespace tokenbus {

// Random numbers of one seed at one output position.
struct Philox {
  uint32_t position, seed_low, seed_high;

  // Words of tokens 4 block to 4 block + 3.
  __device__ __forceinline__ void words(uint32_t block, uint32_t (&out)[4]) const {
    uint32_t c0 = block, c1 = position, c2 = 0, c3 = 0, key_0 = seed_low, key_1 = seed_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
      const uint32_t high_0 = __umulhi(0xD2511F53u, c0), low_0 = 0xD2511F53u * c0;
      const uint32_t high_2 = __umulhi(0xCD9E8D57u, c2), low_2 = 0xCD9E8D57u * c2;
      c0 = high_2 ^ c1 ^ key_0;
      c1 = low_2;
      c2 = high_0 ^ c3 ^ key_1;
      c3 = low_0;
      key_0 += 0x9E3779B9u;
      key_1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
  }

  __device__ __forceinline__ uint32_t word(uint32_t token) const {
    uint32_t four[4];
    words(token / 4, four);
    const uint32_t low = token & 1 ? four[1] : four[0], high = token & 1 ? four[3] : four[2];
    return token & 2 ? high : low;
  }
};

static __device__ __forceinline__ float uniform(uint32_t word) {
  return fminf((static_cast<float>(word) + 0.5f) * 0x1p-32f, 1 - 0x1p-24f);
}

// Kept out of the loops that call it, for few of their tokens.
static __device__ __attribute__((noinline)) float gumbel(uint32_t word) { return -logf(-log1pf(-uniform(word))); }

constexpr float kMaxGumbel = 22.9f;  // -ln(2^-33) is 22.87

// At least the noise of this word, at a tenth of the cost: -ln(-ln(1 - u)) <= -ln u.
static __device__ __forceinline__ float gumbel_bound(uint32_t word) { return 1e-3f - __logf(uniform(word)); }

}  // namespace tokenbus
