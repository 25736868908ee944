#include "kernels/kv_cache_write/kv_cache_write.h"

#include "kernels/native/team.h"

// key, value: bf16 [T, K, D] with key_stride and value_stride elements from token to token; slot_mapping: [T].
extern "C" void tokenbus_kv_cache_write(tokenbus::Team* team, const tokenbus::CacheShape* shape, const bf16* key,
                                        int64_t key_stride, const bf16* value, int64_t value_stride, bf16* key_cache,
                                        bf16* value_cache, const int64_t* slot_mapping, int num_tokens) {
  team->run([&](tokenbus::Member& member) {
    member.share(num_tokens, [&](int token) {
      tokenbus::kv_cache_write_token(*shape, key + token * key_stride, value + token * value_stride, key_cache,
                                     value_cache, slot_mapping[token]);
    });
  });
}
