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

f32x16 widened(const float* from) { return load<f32x16>(from); }
f32x16 widened(const bf16* from) { return load_bf16(from); }

// Whether all values are finite numbers; count: a multiple of 16.
template <class Value>
bool is_finite(const Value* values, int count) {
  f32x16 check = {};
  for (int i = 0; i < count; i += 16) check += widened(values + i) * 0.0f;
  return sum_of(check) == 0.0f;
}

// What one thread does in a step; all threads run the same phases.
class StepRun {
 public:
  StepRun(Engine& engine, const Step& step, Member& member)
      : d_(engine.decoder), space_(engine.workspace), engine_(engine), step_(step), member_(member),
        num_tokens_(step.num_tokens), residual_(space_.residual.get()), attended_(space_.attended.get()) {}

  void run() {
    embed();
    for (int index = 0; index < d_.num_layers; index++) {
      const Layer& layer = d_.layers[index];
      attention(layer, index);
      if (index == d_.num_layers - 1) keep_sampled();
      add_product(layer.output, attended_);
      feed_forward(layer);
    }
    finish();
  }

 private:
  float* residual(int token) const { return residual_ + static_cast<size_t>(token) * d_.hidden_size; }
  bf16* attended(int token) const { return attended_ + static_cast<size_t>(token) * d_.num_heads * d_.head_dim; }
  bf16* normed(int token) const { return space_.normed.get() + static_cast<size_t>(token) * d_.hidden_size; }
  bf16* heads(int token) const { return space_.heads.get() + static_cast<size_t>(token) * engine_.heads_width(); }

  // An id that is not in the vocabulary turns its own sequence into NaN, nobody else's.
  void embed() {
    member_.share(num_tokens_, [&](int token) {
      const int32_t id = step_.token_ids[token];
      if (id >= 0 && id < d_.vocab_size)
        embed_row(d_.embedding, id, residual(token));
      else
        std::fill_n(residual(token), d_.hidden_size, std::numeric_limits<float>::quiet_NaN());
    });
  }

  void norm(const float* weight) {
    member_.share(num_tokens_,
                  [&](int token) { rms_norm_row(residual(token), weight, d_.eps, d_.hidden_size, normed(token)); });
  }

  void attention(const Layer& layer, int index) {
    norm(layer.attention_norm);
    product(member_, layer.query_key_value, space_.rows(space_.normed.get()), num_tokens_,
            [&](int token, int panel, f32x16 a, f32x16 b) {
              store_bf16(heads(token) + panel * kPanel, a);
              store_bf16(heads(token) + panel * kPanel + 16, b);
            });
    bf16 *keys = engine_.keys(index), *values = engine_.values(index);
    member_.share(num_tokens_, [&](int token) { place(layer, token, keys, values); });
    engine_.attend(index, member_);
  }

  // Once the last layer's keys and values are written and read, the other tokens have nothing left to do: most of a
  // prompt is spared most of the layer. Their residual and what they attended to show whether all that they have written
  // is finite.
  void keep_sampled() {
    const int width = d_.num_heads * d_.head_dim;
    member_.share(num_tokens_, [&](int token) {
      step_.token_is_finite[token] = is_finite(residual(token), d_.hidden_size) && is_finite(attended(token), width);
    });
    float* kept_residual = space_.kept_residual.get();
    bf16* kept_attended = space_.kept_attended.get();
    member_.share(step_.num_rows, [&](int row) {
      const int token = step_.row_tokens[row];
      std::copy_n(residual(token), d_.hidden_size, kept_residual + static_cast<size_t>(row) * d_.hidden_size);
      std::copy_n(attended(token), width, kept_attended + static_cast<size_t>(row) * width);
    });
    num_tokens_ = step_.num_rows;
    residual_ = kept_residual;
    attended_ = kept_attended;
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
    product(member_, layer.gate_up, space_.rows(space_.normed.get()), num_tokens_,
            [&](int token, int panel, f32x16 gate, f32x16 up) {
              bf16* inner = space_.activated.get() + static_cast<size_t>(token) * d_.inner_size;
              store_bf16(inner + panel * 16, silu(gate) * up);
            });
    add_product(layer.down, space_.activated.get());
  }

  void finish() {
    bf16* sampled = space_.sampled.get();
    member_.share(step_.num_rows, [&](int row) {
      if (!is_finite(residual(row), d_.hidden_size)) step_.token_is_finite[step_.row_tokens[row]] = false;
      rms_norm_row(residual(row), d_.final_norm, d_.eps, d_.hidden_size,
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
    product(member_, linear, space_.rows(input), num_tokens_, [&](int token, int panel, f32x16 a, f32x16 b) {
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
  int num_tokens_;  // of which residual_ and attended_ hold rows: the step's, at the end only the sampled ones
  float* residual_;
  bf16* attended_;
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
