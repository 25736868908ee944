#include "kernels/rope/rope.h"

#include "kernels/native/team.h"

// heads: bf16 [T, num_heads, head_dim] with stride elements from token to token, in place; cos_sin: float32 [T, D].
extern "C" void tokenbus_rope(tokenbus::Team* team, bf16* heads, int64_t stride, const float* cos_sin, int num_tokens,
                              int num_heads, int head_dim) {
  team->run([&](tokenbus::Member& member) {
    member.share(num_tokens, [&](int token) {
      tokenbus::rope_heads(heads + token * stride, num_heads, head_dim, cos_sin + static_cast<size_t>(token) * head_dim);
    });
  });
}
