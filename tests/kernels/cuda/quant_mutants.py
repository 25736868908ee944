"""Bugs planted in the products with quantised weights."""

from dataclasses import replace

from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.quant_checks import (
    fp8_weights,
    int4_few_rows,
    int4_few_rows_split,
    int4_in_another_order,
    int4_many_rows,
    int4_many_rows_split,
    int8_weights,
    int8_weights_in_float16,
)

FOLDER = "kernels/quant_matmul/"
WEIGHTS, PRODUCT, FEW, MANY, SPLITS, KERNEL = (
    FOLDER + name for name in ("weights.cuh", "product.cuh", "few_rows.cuh", "many_rows.cuh", "splits.cuh", "kernel.cu")
)

_EVERY_RUN = {
    "quant_matmul: the first tile's zero for all": Mutant(
        WEIGHTS, "(zeros >> 4 * tile & 15u)", "(zeros & 15u)", (int4_few_rows,)
    ),
    "quant_matmul: codes without their zeros": Mutant(
        WEIGHTS, "kTwoWhole<T> | (zeros >> 4 * tile & 15u) * 0x00010001u", "kTwoWhole<T>", (int4_few_rows,)
    ),
    "quant_matmul: bfloat16's whole numbers for float16": Mutant(
        WEIGHTS, "kTwoWhole<__half> = 0x64006400u", "kTwoWhole<__half> = 0x43004300u", (int4_many_rows,)
    ),
    "quant_matmul: int8 less 127": Mutant(WEIGHTS, "8388608.0f + 128.0f", "8388608.0f + 127.0f", (int8_weights,)),
    "quant_matmul: int8 less 64 in float16": Mutant(WEIGHTS, "0x64806480u", "0x64406440u", (int8_weights_in_float16,)),
    "quant_matmul: fp8 without its sign": Mutant(WEIGHTS, "(high & 0x80008000u) | ", "", (fp8_weights,)),
    "quant_matmul: fp8 by a power of two too few": Mutant(WEIGHTS, "0x7b807b80u", "0x7b007b00u", (fp8_weights,)),
    "quant_matmul: scales of the first group for all": Mutant(
        PRODUCT, "num_groups + chunk / matrix.chunks_of_group;", "num_groups;", (int4_few_rows,)
    ),
    "quant_matmul: a column's scale for its neighbour": Mutant(
        PRODUCT, "of_columns[tile][i % 2]", "of_columns[tile][0]", (int4_few_rows,)
    ),
    "quant_matmul: sums go on after their group": Mutant(
        PRODUCT, "        sums[m][tile][i] = 0.0f;\n", "", (int4_few_rows,)
    ),
    "quant_matmul: the second step takes the first one's inputs": Mutant(
        PRODUCT, "{rows[m].first[2 * step],", "{rows[m].first[0],", (int4_few_rows,)
    ),
}

_FURTHER = {
    "quant_matmul: 8 bits without their scales in the neighbour": Mutant(
        PRODUCT, "scales[columns + 8 * tile + i % 2]", "scales[columns + 8 * tile]", (int8_weights,)
    ),
    "quant_matmul: columns beyond the last are written": Mutant(
        PRODUCT, "    if (column >= result.num_columns) break;\n", "", (int4_few_rows,)
    ),
    "quant_matmul: rows beyond the last are written": Mutant(
        PRODUCT, "        if (row >= result.num_rows) continue;\n", "", (int4_few_rows,)
    ),
    "quant_matmul: one bias for two columns": Mutant(
        PRODUCT, "to_float<T>(result.bias[column + i])", "to_float<T>(result.bias[column])", (int4_few_rows,)
    ),
    "quant_matmul: rows beyond the last are read": Mutant(FEW, "row < num_rows ? ", "true ? ", (int4_few_rows_split,)),
    "quant_matmul: the last chunks under way are forgotten": Mutant(
        FEW, "if (chunk + kAhead < last) load_few", "if (chunk + kAhead + 1 < last) load_few", (int4_few_rows,)
    ),
    "quant_matmul: the other half's sums are read before they are there": Mutant(
        FEW, "  __syncthreads();\n", "", (int4_few_rows,)
    ),
    "quant_matmul: half of the inputs are left out": Mutant(
        FEW, "sums[i] += halves[warp][i][lane];", "sums[i] += 0.0f;", (int4_few_rows,)
    ),
    "quant_matmul: stages are read before they have come": Mutant(
        MANY, "    cp_async_wait<kStages - 2>();\n", "", (int4_many_rows,)
    ),
    "quant_matmul: a stage is overwritten while it is read": Mutant(
        MANY, "stage == 0 ? kStages - 1 : stage - 1;", "stage;", (int4_many_rows,)
    ),
    "quant_matmul: no barrier before a stage": Mutant(
        MANY,
        "    cp_async_wait<kStages - 2>();\n    __syncthreads();\n",
        "    cp_async_wait<kStages - 2>();\n",
        (int4_many_rows,),
    ),
    "quant_matmul: inputs beyond the last are read": Mutant(
        MANY, " && chunk + unit / (kChunk / 8) < last;", ";", (int4_many_rows,)
    ),
    "quant_matmul: rows are written in one order and read in another": Mutant(
        MANY,
        "memcpy(rows[m].first, stage + place(16 * m + lane / 4, unit)",
        "memcpy(rows[m].first, stage + place(16 * m, unit)",
        (int4_many_rows,),
    ),
    "quant_matmul: every block of rows is the first": Mutant(
        MANY, "first_row = blockIdx.z * kManyRows;", "first_row = 0 * kManyRows;", (int4_many_rows,)
    ),
    "quant_matmul: the first split's sums for all": Mutant(
        SPLITS, "of_part + split * kSize;", "of_part;", (int4_few_rows_split,)
    ),
    "quant_matmul: no split is the last": Mutant(
        SPLITS, "1u) + 1 == gridDim.y", "1u) == gridDim.y", (int4_few_rows_split,)
    ),
    "quant_matmul: a part's count is left for the next launch": Mutant(
        SPLITS, "  if (threadIdx.x == 0) splits.arrived[part] = 0;\n", "", (int4_many_rows_split,)
    ),
    "quant_matmul: inputs in the order of the groups for none": Mutant(
        KERNEL, "x[row + order[at + i]]", "x[row + at + i]", (int4_in_another_order,)
    ),
    "quant_matmul: the first row's inputs for all": Mutant(
        KERNEL, "taken[i] = x[row + order", "taken[i] = x[order", (int4_in_another_order,)
    ),
}

MUTANTS = _EVERY_RUN | {name: replace(mutant, is_long_run=True) for name, mutant in _FURTHER.items()}
