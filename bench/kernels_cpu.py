"""Attention kernels on the CPU, alone: C++ on packed caches against torch on gathered ones.

python -m bench.kernels_cpu [--level avx2] [--cases decode-16x512 ...] [--layers 30] [--no-torch]

Every layer has caches of its own, as in a model, so that decoding reads from memory what does not fit into the caches.
GB/s counts the keys and values seen, once for each kv head; GFLOP/s both products, without hidden keys.
"""

import argparse
import statistics
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.timing import repeated_ms
from kernels.native.build import BuildError
from kernels.native.isa import Level
from kernels.native.memory import zeros_in_huge_pages
from kernels.paged_attention import cpu
from kernels.paged_attention.native import NativeAttention
from kernels.paged_attention.plan import plan_attention

BLOCK_SIZE = 16
MIN_STEPS, SECONDS = 5, 1.5


@dataclass(frozen=True)
class Case:
    """sequences of the same (queries, context); heads: (query heads, kv heads, size)."""

    sequences: int
    queries: int
    context: int
    heads: tuple[int, int, int] = (9, 3, 64)

    @property
    def num_blocks(self) -> int:
        """Blocks of all sequences."""
        return self.sequences * -(-self.context // BLOCK_SIZE)

    @property
    def gigabytes(self) -> float:
        """Keys and values of all tokens, one layer."""
        return self.sequences * self.context * self.heads[1] * self.heads[2] * 4 / 1e9

    @property
    def gigaflops(self) -> float:
        """Both products over the keys that each query sees, one layer."""
        seen = self.queries * (2 * self.context - self.queries + 1) / 2
        return self.sequences * seen * self.heads[0] * self.heads[2] * 4 / 1e9


CASES = {
    "decode-1x512": Case(1, 1, 512),
    "decode-16x512": Case(16, 1, 512),
    "decode-64x512": Case(64, 1, 512),
    "decode-1x8192": Case(1, 1, 8192),
    "decode-16x512-128": Case(16, 1, 512, (32, 8, 128)),
    "prefill-512": Case(1, 512, 512),
    "prefill-512-of-1024": Case(1, 512, 1024),
    "prefill-512-of-2048": Case(1, 512, 2048),
    "prefill-512-of-2048-128": Case(1, 512, 2048, (32, 8, 128)),
}


@dataclass(frozen=True)
class Inputs:
    """What both ways take. caches: bfloat16 [layers, 2, N * K * 16 * D], of any layout: the values do not matter."""

    case: Case
    cu_seqlens_q: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    queries: Tensor
    caches: Tensor


def make_inputs(case: Case, num_layers: int) -> Inputs:
    """Random queries, keys and values, blocks dealt out in random order."""
    num_heads, num_kv_heads, head_dim = case.heads
    generator = torch.Generator().manual_seed(0)
    elements = case.num_blocks * BLOCK_SIZE * num_kv_heads * head_dim
    caches = zeros_in_huge_pages((num_layers, 2, elements), torch.bfloat16)
    for layer in caches:
        layer.copy_(torch.randn(2, elements, generator=generator))
    num_tokens = case.sequences * case.queries
    return Inputs(
        case,
        np.arange(0, num_tokens + 1, case.queries, dtype=np.int32),
        np.full(case.sequences, case.context, dtype=np.int32),
        np.random.default_rng(0).permutation(case.num_blocks).astype(np.int32).reshape(case.sequences, -1),
        torch.randn(num_layers, num_tokens, num_heads, head_dim, generator=generator).to(torch.bfloat16),
        caches,
    )


def time_native(inputs: Inputs, level: Level | None, num_threads: int) -> list[float]:
    """Milliseconds of steps of all layers. Raises BuildError where there is no C++."""
    attention = NativeAttention(*inputs.case.heads, BLOCK_SIZE, level=level, num_threads=num_threads)

    def step() -> None:
        attention.plan(inputs.cu_seqlens_q, inputs.context_lens, inputs.block_tables)
        attention.attend(list(inputs.queries), list(inputs.caches[:, 0]), list(inputs.caches[:, 1]))

    return repeated_ms(step, MIN_STEPS, SECONDS)


def time_torch(inputs: Inputs) -> list[float]:
    """Milliseconds of steps of all layers."""
    _, num_kv_heads, head_dim = inputs.case.heads
    shape = (len(inputs.queries), 2, inputs.case.num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
    caches = inputs.caches.view(shape)

    def step() -> None:
        plan = plan_attention(inputs.cu_seqlens_q, inputs.context_lens, inputs.block_tables, BLOCK_SIZE, torch.bfloat16)
        for query, (keys, values) in zip(inputs.queries, caches, strict=True):
            cpu.paged_attention(query, keys, values, plan, head_dim**-0.5)

    return repeated_ms(step, MIN_STEPS, SECONDS)


def main() -> None:
    """Prints a line for each case and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=get_args(Level), help="of instructions; the highest one by default")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-torch", action="store_true", help="C++ alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.cases:
        inputs = make_inputs(CASES[name], options.layers)
        try:
            _report(name, "C++", time_native(inputs, options.level, options.threads), inputs)
        except BuildError as error:
            parser.error(str(error))
        if not options.no_torch:
            _report(name, "torch", time_torch(inputs), inputs)


def _report(name: str, way: str, milliseconds: list[float], inputs: Inputs) -> None:
    median, layers = statistics.median(milliseconds), len(inputs.queries)
    print(
        f"{name:24} {way:6} {median:8.2f} ms (least {min(milliseconds):.2f})"
        f" {inputs.case.gigabytes * layers / median * 1e3:6.1f} GB/s"
        f" {inputs.case.gigaflops * layers / median * 1e3:6.0f} GFLOP/s",
        flush=True,
    )


if __name__ == "__main__":
    main()
