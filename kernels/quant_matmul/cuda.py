"""Products with quantised weights on a device."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name
from kernels.quant_matmul.layout import CHUNK, Encoding, PackedWeights

SOURCE = Path(__file__).with_name("kernel.cu")
TAKE_INPUTS = "tokenbus::take_inputs"
ENCODINGS: tuple[Encoding, ...] = ("int4", "int8", "fp8")
_WEIGHTS: dict[Encoding, str] = {"int4": "Int4", "int8": "Int8", "fp8": "Fp8"}
_TAKE_THREADS, _TAKE_STEP = 256, 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What a block of one of the kernels computes.

    warps_deep: that share a column's inputs; blocks_at_once: on a multiprocessor.
    """

    rows: int
    columns: int
    warps_deep: int
    blocks_at_once: int

    @property
    def threads(self) -> int:
        return self.warps_deep * self.columns  # a warp has 32 columns

    def blocks(self, num_rows: int, num_columns: int) -> tuple[int, int]:
        """(of columns, of rows)."""
        return -(-num_columns // self.columns), -(-num_rows // self.rows)

    def splits(self, num_rows: int, weights: PackedWeights, num_processors: int) -> int:
        """Over how many blocks a column's inputs are split, so that all multiprocessors have work.

        Depends on nothing but the sizes: the same product is the same bits each time.
        """
        columns, rows = self.blocks(num_rows, weights.num_columns)
        num_groups = weights.num_inputs // weights.group_size
        wanted = num_processors * self.blocks_at_once // (columns * rows)
        return max(1, min(wanted, num_groups // self.warps_deep))


FEW = Shape(rows=16, columns=128, warps_deep=2, blocks_at_once=2)
MANY = Shape(rows=64, columns=256, warps_deep=1, blocks_at_once=1)


def few_instance(dtype: torch.dtype, encoding: Encoding) -> str:
    """Of the kernel for few rows: for activations of this dtype and weights in this encoding."""
    return f"tokenbus::multiply_few_rows<{c_name(dtype)}, tokenbus::{_WEIGHTS[encoding]}>"


def many_instance(dtype: torch.dtype, encoding: Encoding) -> str:
    """Of the kernel for many rows."""
    return f"tokenbus::multiply_many_rows<{c_name(dtype)}, tokenbus::{_WEIGHTS[encoding]}>"


class Workspace:
    """Memory that all products of a stream share, one after another.

    num_processors: multiprocessors of the device. max_rows, max_inputs: of inputs in another order, 0 where no weights
    have such.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        num_processors: int,
        device: torch.device,
        max_rows: int = 0,
        max_inputs: int = 0,
    ) -> None:
        self.num_processors = num_processors
        num_sums = max(shape.blocks_at_once * shape.rows * shape.columns for shape in (FEW, MANY))
        num_parts = max(shape.blocks_at_once for shape in (FEW, MANY))
        self.found = torch.empty(num_processors * num_sums, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(num_processors * num_parts, dtype=torch.int32, device=device)
        self.taken = torch.empty((max_rows, max_inputs), dtype=dtype, device=device).flatten()


class QuantMatmul:
    """For weights of one encoding. dtype: bfloat16 or float16, of inputs, outputs and biases."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, encoding: Encoding) -> None:
        self._few, self._many = few_instance(dtype, encoding), many_instance(dtype, encoding)
        self._module = load(SOURCE, [self._few, self._many, TAKE_INPUTS])

    def __call__(
        self, out: Tensor, x: Tensor, weights: PackedWeights, workspace: Workspace, bias: Tensor | None = None
    ) -> None:
        """out = x * weights + bias, summed up in float32 and rounded once.

        out: dtype [T, num_columns]; x: dtype [T, num_inputs], or as many as the weights' order takes from; bias: dtype
        [num_columns]; all contiguous.
        """
        num_rows = len(x)
        if not num_rows:
            return
        shape, instance = (FEW, self._few) if num_rows <= FEW.rows else (MANY, self._many)
        columns, rows = shape.blocks(num_rows, weights.num_columns)
        arguments = (
            out,
            x if weights.order is None else self._take(x, weights.order, workspace),
            weights.words,
            weights.scales,
            weights.zeros,
            bias,
            workspace.found,
            workspace.arrived,
            np.int32(num_rows),
            np.int32(weights.num_columns),
            np.int32(weights.num_inputs // CHUNK),
            np.int32(weights.group_size // CHUNK),
        )
        splits = shape.splits(num_rows, weights, workspace.num_processors)
        self._module.launch(instance, (columns, splits, rows), (shape.threads, 1, 1), arguments)

    def _take(self, x: Tensor, order: Tensor, workspace: Workspace) -> Tensor:
        """x with its inputs in another order."""
        (num_rows, width), n = x.shape, len(order)
        blocks = -(-n // (_TAKE_THREADS * _TAKE_STEP))
        arguments = (workspace.taken, x, order, np.int32(n), np.int32(width))
        self._module.launch(TAKE_INPUTS, (num_rows, blocks, 1), (_TAKE_THREADS, 1, 1), arguments)
        return workspace.taken
