// Rows of an embedding table that is packed like a projection, since models tie it to their lm_head.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

// out: float32 [n_in], the weights of output column id.
void embed_row(const Linear& embedding, int32_t id, float* out);

}  // namespace tokenbus
