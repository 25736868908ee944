"""Bugs planted in RMSNorm, SiLU gate, RoPE and the KV cache write."""

from dataclasses import replace

from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.small_checks import (
    fp8_cache,
    kv_cache_write,
    large_kv_cache,
    large_rms_norm_heads,
    large_rope,
    rms_norm,
    rms_norm_heads,
    rope,
    silu_and_mul,
)

NORM, SILU, ROPE, WRITE = (
    f"kernels/{operation}/kernel.cu" for operation in ("rms_norm", "silu_and_mul", "rope", "kv_cache_write")
)
NUMBERS = "kernels/cuda/numbers.cuh"

_NORM = {
    "rms_norm: no barrier before other warps' sums are read": Mutant(
        NORM, "  __syncthreads();\n  float sum", "  float sum", (rms_norm,)
    ),
    "rms_norm: half of each warp is summed": Mutant(
        NORM,
        "for (int distance = 16; distance > 0; distance /= 2) value",
        "for (int distance = 8; distance > 0; distance /= 2) value",
        (rms_norm,),
    ),
    "rms_norm: the last warp's sum is left out": Mutant(
        NORM, "warp < kNormWarps; warp++", "warp < kNormWarps - 1; warp++", (rms_norm,)
    ),
    "rms_norm: every warp's sum at the same place": Mutant(
        NORM, "of_warps[threadIdx.x / 32] = value", "of_warps[0] = value", (rms_norm,)
    ),
    "rms_norm: the last step of a row is left out of the sum": Mutant(
        NORM,
        "i < n; i += kNormThreads * kStep) {\n    float4*",
        "i + kStep < n; i += kNormThreads * kStep) {\n    float4*",
        (rms_norm,),
    ),
    "rms_norm: a step beyond the row is written": Mutant(
        NORM,
        "i < n; i += kNormThreads * kStep) {\n    float values",
        "i <= n; i += kNormThreads * kStep) {\n    float values",
        (rms_norm,),
    ),
    "rms_norm: half of the residual is stored": Mutant(
        NORM, "at[0] = first, at[1] = second;", "at[0] = first;", (rms_norm,)
    ),
    "rms_norm: no eps": Mutant(NORM, "/ n + eps)", "/ n)", (rms_norm,)),
    "rms_norm: a sum for a mean": Mutant(NORM, "sum_of_block(squares) / n", "sum_of_block(squares)", (rms_norm,)),
    "rms_norm: the first weights for each step": Mutant(
        NORM, "scale * weight[i + k];\n    *rein", "scale * weight[k];\n    *rein", (rms_norm,)
    ),
    "rms_norm: every block does the first row": Mutant(
        NORM, "static_cast<int64_t>(blockIdx.x) * n", "0 * n", (rms_norm,)
    ),
    "rms_norm heads: lanes beyond a head are not left out": Mutant(
        NORM, "  if (i >= head_dim) return;\n", "", (rms_norm_heads,)
    ),
    "rms_norm heads: heads beyond the last are not left out": Mutant(
        NORM, "  if (head >= num_heads) return;\n", "", (rms_norm_heads,)
    ),
    "rms_norm heads: 32 bits for a token's place": Mutant(
        NORM, "heads + blockIdx.x * stride", "heads + static_cast<int>(blockIdx.x * stride)", (large_rms_norm_heads,)
    ),
}

_SILU = {
    "silu_and_mul: the gate for what it gates": Mutant(SILU, "* 2 * n + n + i", "* 2 * n + i", (silu_and_mul,)),
    "silu_and_mul: a step beyond the row": Mutant(SILU, "if (i >= n) return", "if (i > n) return", (silu_and_mul,)),
    "silu_and_mul: a row's second block does the first one's part": Mutant(
        SILU, "(blockIdx.y * kSiluThreads + threadIdx.x)", "(threadIdx.x)", (silu_and_mul,)
    ),
    "silu_and_mul: the other sign": Mutant(SILU, "__expf(-gate[k])", "__expf(gate[k])", (silu_and_mul,)),
    "silu_and_mul: rows lie n apart": Mutant(
        SILU, "load_16(gate_up + row * 2 * n + i)", "load_16(gate_up + row * n + i)", (silu_and_mul,)
    ),
}

_ROPE = {
    "rope: a neighbour for the other half": Mutant(ROPE, "first + half;", "first + kStep;", (rope,)),
    "rope: turned the wrong way": Mutant(ROPE, "x[k] * c - y[k] * s", "x[k] * c + y[k] * s", (rope,)),
    "rope: the second half is turned by what the first has become": Mutant(
        ROPE,
        "      y[k] = y[k] * c + x[k] * s;\n      x[k] = turned;",
        "      x[k] = turned;\n      y[k] = y[k] * c + x[k] * s;",
        (rope,),
    ),
    "rope: cosines for sines": Mutant(ROPE, "s = cosines[half + i + k]", "s = cosines[i + k]", (rope,)),
    "rope: a token's number for its position": Mutant(
        ROPE, "cos_sin + positions[blockIdx.x]", "cos_sin + blockIdx.x", (rope,)
    ),
    "rope: heads beyond the block's threads are left out": Mutant(
        ROPE,
        "task < num_heads * steps; task += kRopeThreads",
        "task < num_heads * steps && task < kRopeThreads; task += kRopeThreads",
        (rope,),
    ),
    "rope: a head too many": Mutant(ROPE, "task < num_heads * steps", "task < (num_heads + 1) * steps", (rope,)),
    "rope: the second half is not stored": Mutant(
        ROPE, "    *reinterpret_cast<uint4*>(second) = pack_16<T>(y);\n", "", (rope,)
    ),
    "rope: 32 bits for a token's place": Mutant(
        ROPE, "heads + blockIdx.x * stride", "heads + static_cast<int>(blockIdx.x * stride)", (large_rope,)
    ),
}

_WRITE = {
    "kv_cache_write: a token that is not to be kept is": Mutant(
        WRITE, "  if (slot < 0) return;\n", "", (kv_cache_write,)
    ),
    "kv_cache_write: no scale": Mutant(WRITE, "numbers[k] * inverse", "numbers[k]", (fp8_cache,)),
    "kv_cache_write: times the scale": Mutant(WRITE, "1.0f / scales[head]", "scales[head]", (fp8_cache,)),
    "kv_cache_write: keys' scales for values": Mutant(
        WRITE, "is_key ? key_scales : value_scales", "key_scales", (fp8_cache,)
    ),
    "kv_cache_write: the first head's scale": Mutant(WRITE, "scales[head]", "scales[0]", (fp8_cache,)),
    "kv_cache_write: 32 bits for a slot's place": Mutant(
        WRITE, "const int64_t place =", "const int place =", (large_kv_cache,)
    ),
    "kv_cache_write: 32 bits without a sign for a slot's place": Mutant(
        WRITE, "const int64_t place =", "const uint32_t place =", (large_kv_cache,)
    ),
    "kv_cache_write: 32 bits for a token's place": Mutant(
        WRITE, "+ blockIdx.x * stride +", "+ static_cast<int>(blockIdx.x * stride) +", (large_kv_cache,)
    ),
    "kv_cache_write: keys into the cache of values": Mutant(
        WRITE, "(is_key ? key_cache : value_cache)", "value_cache", (kv_cache_write,)
    ),
    "kv_cache_write: heads lie side by side in every layout": Mutant(
        WRITE, "head * head_stride", "head * head_dim", (kv_cache_write,)
    ),
    "kv_cache_write: tokens of a block lie side by side in every layout": Mutant(
        WRITE, "slot % block_size * token_stride", "slot % block_size * num_heads * head_dim", (kv_cache_write,)
    ),
    "kv_cache_write: the last step of a head is left out": Mutant(
        WRITE, "task < 2 * num_heads * steps", "task < 2 * num_heads * steps - 1", (kv_cache_write,)
    ),
}

# Of the header that all of them use.
_NUMBERS = {
    "numbers: bfloat16 is cut off, not rounded": Mutant(
        NUMBERS, "return __float2bfloat16(value);", "return __float2bfloat16_rz(value);", (silu_and_mul,)
    ),
    "numbers: the last of 16 bytes is not unpacked": Mutant(
        NUMBERS,
        "i < kNumbers<T>; i++) values[i] = to_float",
        "i < kNumbers<T> - 1; i++) values[i] = to_float",
        (silu_and_mul,),
    ),
}

# Much like others that every run tries.
_LONG_RUN = {
    "rms_norm: the last warp's sum is left out",
    "rms_norm: every warp's sum at the same place",
    "rms_norm: half of the residual is stored",
    "rms_norm: a sum for a mean",
    "rms_norm: the first weights for each step",
    "rms_norm: every block does the first row",
    "rms_norm heads: heads beyond the last are not left out",
    "rms_norm heads: 32 bits for a token's place",
    "silu_and_mul: a row's second block does the first one's part",
    "silu_and_mul: the other sign",
    "silu_and_mul: rows lie n apart",
    "rope: turned the wrong way",
    "rope: cosines for sines",
    "rope: a token's number for its position",
    "rope: a head too many",
    "rope: the second half is not stored",
    "kv_cache_write: times the scale",
    "kv_cache_write: keys' scales for values",
    "kv_cache_write: the first head's scale",
    "kv_cache_write: 32 bits without a sign for a slot's place",
    "kv_cache_write: keys into the cache of values",
    "kv_cache_write: tokens of a block lie side by side in every layout",
    "numbers: the last of 16 bytes is not unpacked",
}
_ALL = {**_NORM, **_SILU, **_ROPE, **_WRITE, **_NUMBERS}

MUTANTS = {name: replace(mutant, is_long_run=name in _LONG_RUN) for name, mutant in _ALL.items()}
