"""Products of a model's steps on the CPU, alone: every matrix of every layer once, in the order of a step.

python -m bench.products_cpu [--level avx2] [--encoding int8] [--rows 1 16 512] [--layers 30]

The shapes are SmolLM2-135M's. Every layer has weights of its own, so that few rows wait for memory. GB/s counts the
weights, once for each step.
"""

import argparse
import statistics
from typing import get_args

import torch

from bench.timing import repeated_ms
from kernels.linear.packing import PackedLinear, pack_bf16
from kernels.linear.packing_blocks import pack_blocks, quantize_q8_0
from kernels.linear.packing_int8 import pack_int8
from kernels.linear.product import Products
from kernels.native.build import BuildError
from kernels.native.isa import Level

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""(outputs, inputs) of query, key and value; output; gate and up; down."""
HEAD = (49152, 576)
ENCODINGS = ("bf16", "int8", "q8")
MIN_STEPS, SECONDS = 3, 1.0


def pack(encoding: str, weight: torch.Tensor) -> PackedLinear:
    """weight: [n_out, n_in] of float32."""
    if encoding == "int8":
        return pack_int8(weight)
    return pack_bf16(weight) if encoding == "bf16" else pack_blocks([quantize_q8_0(weight)])


def make_matrices(encoding: str, num_layers: int) -> list[PackedLinear]:
    """Random weights of all layers and the head."""
    generator = torch.Generator().manual_seed(0)
    shapes = [*LAYER * num_layers, HEAD]
    return [pack(encoding, torch.randn(shape, generator=generator)) for shape in shapes]


def measure(products: Products, matrices: list[PackedLinear], num_rows: int) -> list[float]:
    """Milliseconds of some steps of num_rows rows."""
    values = torch.randn(num_rows * max(matrix.n_in for matrix in matrices)).bfloat16()
    out = torch.empty(num_rows * max(matrix.n_out for matrix in matrices))
    return repeated_ms(lambda: products.multiply_all(matrices, values, num_rows, out), MIN_STEPS, SECONDS)


def main() -> None:
    """Prints a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=get_args(Level), help="of instructions; the highest one by default")
    parser.add_argument("--encoding", choices=ENCODINGS, default="bf16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    matrices = make_matrices(options.encoding, options.layers)
    num_bytes = sum(matrix.weight.nbytes for matrix in matrices)
    num_weights = sum(matrix.n_out * matrix.n_in for matrix in matrices)
    try:
        products = Products(options.level, options.threads)
    except BuildError as error:
        parser.error(str(error))
    for num_rows in options.rows:
        times = measure(products, matrices, num_rows)
        median = statistics.median(times)
        print(
            f"{num_rows:4} rows {median:8.2f} ms (least {min(times):.2f})"
            f" {num_bytes / median / 1e6:6.1f} GB/s {2 * num_rows * num_weights / median / 1e6:6.0f} GFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
