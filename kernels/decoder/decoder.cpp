// One step, phase by phase. A phase's tasks are shared by the team; its results are whole before the next begins.
//
// The residual stays in float32: rounded to bfloat16 after each layer it would carry most of the model's error.
#include <cmath>
#include <limits>

#include "kernels/decoder/engine.h"
#include "kernels/kv_cache_write/kv_cache_write.h"
#include "kernels/linear/embedding.h"
#include "kernels/linear/product.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"

namespace tokenbus {

namespace {

f32x16 silu(f32x16 x) { return x / (exp(-x) + 1.0f); }

// What one thread does in a step; all threads run the same phases.
class StepRun {
 public:
  StepRun(Engine& engine, const Step& step, Member& member)
      : d_(engine.decoder), space_(engine.workspace), engine_(engine), step_(step), member_(member) {}

  void run() {
    embed();
    for (int index = 0; index < d_.num_layers; index++) {
      const Layer& layer = d_.layers[index];
      attention(layer, index);
      feed_forward(layer);
    }
    finish();
  }

 private:
  float* residual(int token) const { return space_.residual.get() + static_cast<size_t>(token) * d_.hidden_size; }
  bf16* normed(int token) const { return space_.normed.get() + static_cast<size_t>(token) * d_.hidden_size; }
  bf16* heads(int token) const { return space_.heads.get() + static_cast<size_t>(token) * engine_.heads_width(); }

  // An id that is not in the vocabulary turns its own sequence into NaN, nobody else's.
  void embed() {
    member_.share(step_.num_tokens, [&](int token) {
      const int32_t id = step_.token_ids[token];
      if (id >= 0 && id < d_.vocab_size)
        embed_row(d_.embedding, id, residual(token));
      else
        std::fill_n(residual(token), d_.hidden_size, std::numeric_limits<float>::quiet_NaN());
    });
  }

  void norm(const float* weight) {
    member_.share(step_.num_tokens,
                  [&](int token) { rms_norm_row(residual(token), weight, d_.eps, d_.hidden_size, normed(token)); });
  }

  void attention(const Layer& layer, int index) {
    norm(layer.attention_norm);
    product(member_, layer.query_key_value, space_.rows(space_.normed.get()), step_.num_tokens,
            [&](int token, int panel, f32x16 a, f32x16 b) {
              store_bf16(heads(token) + panel * kPanel, a);
              store_bf16(heads(token) + panel * kPanel + 16, b);
            });
    bf16 *keys = engine_.keys(index), *values = engine_.values(index);
    member_.share(step_.num_tokens, [&](int token) { place(layer, token, keys, values); });
    engine_.attend(index, member_);
    add_product(layer.output, space_.attended.get());
  }

  // Turns a token's query and key heads and writes key and value into the cache.
  void place(const Layer& layer, int token, bf16* keys, bf16* values) {
    const int d = d_.head_dim;
    bf16 *query = heads(token), *key = query + d_.num_heads * d, *value = key + d_.num_kv_heads * d;
    if (layer.query_norm != nullptr) {
      for (int head = 0; head < d_.num_heads; head++) rms_norm_head(query + head * d, layer.query_norm, d_.eps, d);
      for (int head = 0; head < d_.num_kv_heads; head++) rms_norm_head(key + head * d, layer.key_norm, d_.eps, d);
    }
    rope_heads(query, d_.num_heads + d_.num_kv_heads, d, d_.cos_sin + step_.positions[token] * d);
    kv_cache_write_token(engine_.cache_shape, key, value, keys, values, step_.slot_mapping[token]);
  }

  void feed_forward(const Layer& layer) {
    norm(layer.feed_forward_norm);
    product(member_, layer.gate_up, space_.rows(space_.normed.get()), step_.num_tokens,
            [&](int token, int panel, f32x16 gate, f32x16 up) {
              bf16* inner = space_.activated.get() + static_cast<size_t>(token) * d_.inner_size;
              store_bf16(inner + panel * 16, silu(gate) * up);
            });
    add_product(layer.down, space_.activated.get());
  }

  void finish() {
    member_.share(step_.num_tokens, [&](int token) {
      f32x16 check = {};
      for (int i = 0; i < d_.hidden_size; i += 16) check += load<f32x16>(residual(token) + i) * 0.0f;
      step_.token_is_finite[token] = sum_of(check) == 0.0f;
    });
    bf16* sampled = space_.sampled.get();
    member_.share(step_.num_rows, [&](int row) {
      rms_norm_row(residual(step_.row_tokens[row]), d_.final_norm, d_.eps, d_.hidden_size,
                   sampled + static_cast<size_t>(row) * d_.hidden_size);
    });
    Likeliest& likeliest = engine_.likeliest[member_.index()];
    product(member_, d_.lm_head, space_.rows(sampled), step_.num_rows, [&](int row, int panel, f32x16 a, f32x16 b) {
      const int count = std::min(kPanel, d_.vocab_size - panel * kPanel);
      if (count < kPanel) repeat_first(a, b, count);
      likeliest.see(row, panel, a, b);
      if (step_.logits_slots[row] < 0) return;
      float* logits = step_.logits + static_cast<size_t>(step_.logits_slots[row]) * d_.vocab_size;
      store_columns(logits + panel * kPanel, count, a, b);
    });
    member_.share(step_.num_rows, [&](int row) {
      step_.likeliest[row] = Likeliest::merge(engine_.likeliest, row);
    });
  }

  // Columns that only fill the last panel get the first one's logit, which wins against them by its lower id.
  static void repeat_first(f32x16& a, f32x16& b, int count) {
    float lanes[kPanel];
    store(lanes, a);
    store(lanes + 16, b);
    std::fill(lanes + count, lanes + kPanel, lanes[0]);
    a = load<f32x16>(lanes);
    b = load<f32x16>(lanes + 16);
  }

  // input times the weights, onto the residual.
  void add_product(const Linear& linear, const bf16* input) {
    product(member_, linear, space_.rows(input), step_.num_tokens, [&](int token, int panel, f32x16 a, f32x16 b) {
      float* sum = residual(token) + panel * kPanel;
      store(sum, load<f32x16>(sum) + a);
      store(sum + 16, load<f32x16>(sum + 16) + b);
    });
  }

  const Decoder& d_;
  Workspace& space_;
  Engine& engine_;
  const Step& step_;
  Member& member_;
};

}  // namespace

Engine::Engine(const Decoder& decoder, int num_threads)
    : decoder(decoder),
      cache_shape{decoder.block_size, decoder.num_kv_heads, decoder.head_dim},
      team(num_threads),
      workspace(decoder),
      likeliest(num_threads, Likeliest(decoder.max_num_seqs)) {
  for (int layer = 0; layer < decoder.num_layers; layer++) plans.try_emplace(decoder.layers[layer].sliding_window);
}

void Engine::plan(const Step& step) {
  const AttentionStep batch{step.num_sequences, step.block_table_stride, step.cu_seqlens_q, step.context_lens,
                            step.block_tables};
  for (auto& [window, plan] : plans)
    plan.make({cache_shape, decoder.num_heads, window, decoder.scale}, batch, team.size());
}

void Engine::attend(int layer, Member& member) {
  AttentionPlan& plan = plans.at(decoder.layers[layer].sliding_window);
  const AttentionLayer call{workspace.heads.get(), heads_width(),           keys(layer), values(layer),
                            workspace.attended.get(), decoder.num_heads * decoder.head_dim};
  share_attention(plan, call, member);
}

void Engine::run(const Step& step) {
  plan(step);
  for (Likeliest& of_thread : likeliest) of_thread.clear(step.num_rows);
  team.run([&](Member& member) { StepRun(*this, step, member).run(); });
}

}  // namespace tokenbus

extern "C" {

tokenbus::Engine* tokenbus_engine_new(const tokenbus::Decoder* decoder, int num_threads) {
  return new tokenbus::Engine(*decoder, num_threads);
}

void tokenbus_engine_delete(tokenbus::Engine* engine) { delete engine; }

void tokenbus_engine_step(tokenbus::Engine* engine, const tokenbus::Step* step) { engine->run(*step); }

tokenbus::Team* tokenbus_engine_team(tokenbus::Engine* engine) { return &engine->team; }
}
