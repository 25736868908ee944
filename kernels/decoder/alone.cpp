// Parts of a step on their own, over the same weights and with the same team: what a whole step is measured against.
#include "kernels/decoder/engine.h"
#include "kernels/linear/product.h"

namespace tokenbus {

namespace {

void multiply(Engine& engine, Member& member, const Linear& linear, const bf16* input, int num_rows, bf16* output) {
  const size_t width = static_cast<size_t>(linear.panels()) * kPanel;
  product(member, linear, engine.workspace.rows(input), num_rows, [&](int row, int panel, f32x16 a, f32x16 b) {
    store_bf16(output + row * width + panel * kPanel, a);
    store_bf16(output + row * width + panel * kPanel + 16, b);
  });
}

}  // namespace

}  // namespace tokenbus

extern "C" {

// All matrix products of a step of num_rows tokens, each of them sampled. Their outputs overwrite one another.
void tokenbus_engine_products(tokenbus::Engine* engine, int num_rows, bf16* output) {
  tokenbus::Workspace& space = engine->workspace;
  engine->team.run([&](tokenbus::Member& member) {
    for (int index = 0; index < engine->decoder.num_layers; index++) {
      const tokenbus::Layer& layer = engine->decoder.layers[index];
      tokenbus::multiply(*engine, member, layer.query_key_value, space.normed.get(), num_rows, output);
      tokenbus::multiply(*engine, member, layer.output, space.attended.get(), num_rows, output);
      tokenbus::multiply(*engine, member, layer.gate_up, space.normed.get(), num_rows, output);
      tokenbus::multiply(*engine, member, layer.down, space.activated.get(), num_rows, output);
    }
    tokenbus::multiply(*engine, member, engine->decoder.lm_head, space.sampled.get(), num_rows, output);
  });
}

// The attention of all layers of a step.
void tokenbus_engine_attention(tokenbus::Engine* engine, const tokenbus::Step* step) {
  engine->plan(*step);
  engine->team.run([&](tokenbus::Member& member) {
    for (int layer = 0; layer < engine->decoder.num_layers; layer++) engine->attend(layer, member);
  });
}
}
