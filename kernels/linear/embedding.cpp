#include "kernels/linear/embedding.h"

#include "kernels/linear/blocks.h"
#include "kernels/linear/int8.h"

namespace tokenbus {

void embed_row(const Linear& embedding, int32_t id, float* out) {
  const size_t panel = id / kPanel, column = id % kPanel;
  switch (embedding.encoding) {
    case kBf16: {
      const bf16* pairs = static_cast<const bf16*>(embedding.weight) + panel * embedding.n_in * kPanel + 2 * column;
      for (int k = 0; k < embedding.n_in; k += 2) {
        out[k] = to_float(pairs[k * kPanel]);
        out[k + 1] = to_float(pairs[k * kPanel + 1]);
      }
      return;
    }
    case kInt8: return int8_column(embedding, id, out);
    case kQ4: return q4_column(embedding, id, out);
    case kQ8: return q8_column(embedding, id, out);
  }
}

}  // namespace tokenbus
