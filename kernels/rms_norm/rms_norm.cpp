#include "kernels/rms_norm/rms_norm.h"

#include "kernels/native/team.h"

extern "C" {

// residual: float32 [rows, n], weight: float32 [n]; out: bf16 [rows, n].
void tokenbus_rms_norm(tokenbus::Team* team, const float* residual, const float* weight, float eps, int rows, int n,
                       bf16* out) {
  team->run([&](tokenbus::Member& member) {
    member.share(rows, [&](int row) {
      const size_t first = static_cast<size_t>(row) * n;
      tokenbus::rms_norm_row(residual + first, weight, eps, n, out + first);
    });
  });
}

// heads: bf16 [num_heads, head_dim], each normalised in place; weight: float32 [head_dim].
void tokenbus_rms_norm_heads(tokenbus::Team* team, bf16* heads, const float* weight, float eps, int num_heads,
                             int head_dim) {
  team->run([&](tokenbus::Member& member) {
    member.share(num_heads, [&](int head) {
      tokenbus::rms_norm_head(heads + static_cast<size_t>(head) * head_dim, weight, eps, head_dim);
    });
  });
}

}
