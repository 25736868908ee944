"""Bugs planted in paged attention."""

from dataclasses import replace

from tests.kernels.cuda.attention_checks import (
    decode,
    decode_of_a_large_cache,
    decode_of_fp8,
    decode_without_tensor_cores,
    prefill,
    prefill_of_fp8,
    split_decode,
)
from tests.kernels.cuda.mutant import Mutant

TILE, CACHE, MERGE, DECODE, SIMT, PREFILL = (
    f"kernels/paged_attention/{name}.cuh"
    for name in ("tile", "cache", "merge", "decode_mma", "decode_simt", "prefill_mma")
)
# Tried at every change; each of the others takes some seconds to build, and is tried in the long run.
OFTEN = (
    "tile: older sums keep the scale of an older maximum",
    "cache: rows beyond the context are not zeros",
    "decode: a stage is filled while it is read",
    "decode: a wait for one group too few",
    "prefill: no barrier once the keys are there",
    "prefill: a query sees the token after it",
)

_TILE = {
    "hidden scores count": Mutant(TILE, "is_hidden = hides &&", "is_hidden = false && hides &&", (prefill, decode)),
    "older sums keep the scale of an older maximum": Mutant(
        TILE, "        sums[i][2 * row] *= rescaling;\n", "", (decode,)
    ),
    "a row that has seen nothing yet is no case of its own": Mutant(
        TILE,
        "most == minus_infinity() ? 0.0f : most;\n      const float rescaling",
        "most;\n      const float rescaling",
        (prefill,),
    ),
    "weights of half of the lanes": Mutant(
        TILE, "      weights[row] += __shfl_xor_sync(0xffffffffu, weights[row], 2);\n", "", (decode,)
    ),
    "the maximum of half of the lanes": Mutant(
        TILE, "      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));\n", "", (decode,)
    ),
    "keys' rows in another order": Mutant(TILE, "lane % 8 + lane / 16 * 8, column", "lane % 16, column", (decode,)),
    "values are not transposed": Mutant(TILE, "ldmatrix_4_transposed(columns", "ldmatrix_4(columns", (decode,)),
    "the cap is of another base": Mutant(TILE, "cap = soft_cap * kLog2E", "cap = soft_cap", (decode, prefill)),
    "rows that ldmatrix cannot read": Mutant(TILE, "kRowLength = kHeadDim + 8", "kRowLength = kHeadDim + 4", (decode,)),
}

_CACHE = {
    "rows beyond the context are not zeros": Mutant(
        CACHE, "    cp_async_16(shared + row", "    if (is_there) cp_async_16(shared + row", (decode, prefill)
    ),
    "offsets of 32 bits": Mutant(
        CACHE,
        "numbers + block * block_stride",
        "numbers + static_cast<int>(block * block_stride)",
        (decode_of_a_large_cache,),
    ),
    "the table is read as if blocks were one token": Mutant(
        CACHE, "table[position >> block_shift]", "table[position]", (decode,)
    ),
    "narrow rows without their padding": Mutant(
        CACHE,
        "from + row * kKeptRowLength<Kept, kHeadDim> + column",
        "from + row * kHeadDim + column",
        (decode_of_fp8,),
    ),
}

_DECODE = {
    "a wait for one group too few": Mutant(
        DECODE, "cp_async_wait<kDecodeStages - 2>()", "cp_async_wait<kDecodeStages - 1>()", (decode,)
    ),
    "a stage is filled while it is read": Mutant(
        DECODE, "next = stage == 0 ? kDecodeStages - 1 : stage - 1", "next = stage", (decode,)
    ),
    "lanes do not wait for one another's copies": Mutant(
        DECODE,
        "cp_async_wait<kDecodeStages - 2>();\n    __syncwarp();",
        "cp_async_wait<kDecodeStages - 2>();",
        (decode,),
    ),
    "rings are overwritten by the merge": Mutant(
        DECODE, "  __syncthreads();  // all rings are used", "  // all rings are used", (decode,)
    ),
    "the merge does not wait for the warps": Mutant(
        DECODE, "  __syncthreads();\n  const float value_scale", "  const float value_scale", (decode,)
    ),
    "a window one token too wide": Mutant(
        DECODE, "max(0, context_len - window)", "max(0, context_len - window - 1)", (decode,)
    ),
    "keys without their scale": Mutant(
        DECODE,
        "scale * (key_scales != nullptr ? key_scales[kv_head] : 1.0f) * kLog2E",
        "scale * kLog2E",
        (decode_of_fp8,),
    ),
    "the wide tile is read before it is whole": Mutant(
        DECODE,
        "(wide, kept, lane);\n      __syncwarp();",
        "(wide, kept, lane);",
        (decode_of_fp8,),
    ),
    "values without their scale": Mutant(MERGE, "    sum *= value_scale;\n", "", (decode_of_fp8,)),
    "the merge leaves a warp out": Mutant(
        MERGE,
        "warp < kWarps; warp++) {\n      const float rescaling",
        "warp < kWarps - 1; warp++) {\n      const float rescaling",
        (decode,),
    ),
    "the last split is left out": Mutant(
        MERGE,
        "i < split.y; i++) {\n    const int64_t row",
        "i < split.y - 1; i++) {\n    const int64_t row",
        (split_decode,),
    ),
    "splits are not scaled alike": Mutant(MERGE, "exp2_fast(partial_stats[row * 2] - base)", "1.0f", (split_decode,)),
}

_SIMT = {
    "half of a warp's rows are merged": Mutant(
        SIMT,
        "distance = kLanes; distance < 32; distance *= 2",
        "distance = kLanes; distance < 16; distance *= 2",
        (decode_without_tensor_cores,),
    ),
    "what lies before the window counts": Mutant(
        SIMT, "position < item.z && position >= oldest", "position < item.z", (decode_without_tensor_cores,)
    ),
    "lanes of a warp end at different times": Mutant(
        SIMT,
        "at < item.z; at += kDecodeWarps * kRows",
        "at + row < item.z; at += kDecodeWarps * kRows",
        (decode_without_tensor_cores,),
    ),
    "the merge does not wait for the warps": Mutant(
        SIMT, "  __syncthreads();\n  const int64_t partial", "  const int64_t partial", (decode_without_tensor_cores,)
    ),
}

_PREFILL = {
    "no barrier once the keys are there": Mutant(
        PREFILL, "    __syncthreads();  // the keys are there", "    // the keys are there", (prefill,)
    ),
    "no wait for the keys": Mutant(
        PREFILL,
        "    cp_async_wait<0>();\n    __syncthreads();  // the keys",
        "    __syncthreads();  // the keys",
        (prefill,),
    ),
    "no barrier once the values are there": Mutant(
        PREFILL, "    __syncthreads();  // the values are there", "    // the values are there", (prefill,)
    ),
    "a query sees the token after it": Mutant(
        PREFILL, "row < num_rows ? position + 1 : 0", "row < num_rows ? position + 2 : 0", (prefill,)
    ),
    "a window one token too narrow": Mutant(
        PREFILL, "window > 0 ? position - window + 1 : 0;", "window > 0 ? position - window + 2 : 0;", (prefill,)
    ),
    "tiles that some rows do not see are taken whole": Mutant(
        PREFILL, "at + kColumns > all_end, lane", "false, lane", (prefill,)
    ),
    "heads of a group get the first ones' queries": Mutant(
        PREFILL, "(first_head + of_sequence % kGroup) * kHeadDim + column", "first_head * kHeadDim + column", (prefill,)
    ),
    "rows beyond the last query are written": Mutant(PREFILL, "    if (row >= num_rows) continue;\n", "", (prefill,)),
    "the wide tile is read before it is whole": Mutant(
        PREFILL, "threadIdx.x);\n      __syncthreads();", "threadIdx.x);", (prefill_of_fp8,)
    ),
}

_BY_FILE = {"tile": _TILE, "cache": _CACHE, "decode": _DECODE, "simt": _SIMT, "prefill": _PREFILL}
_ALL = {f"{file}: {name}": mutant for file, mutants in _BY_FILE.items() for name, mutant in mutants.items()}

MUTANTS = {f"paged_attention, {name}": replace(mutant, is_long_run=name not in OFTEN) for name, mutant in _ALL.items()}
