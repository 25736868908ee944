"""Tensor data of a GGUF file as numpy arrays in Hugging Face's order."""

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from shared.repository.gguf_file import GgufFile, GgufTensor

_NATIVE: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_gguf_tensor(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """One tensor in its own shape: F32 and F16 as they are, BF16 as uint16 bit patterns, the rest as float32."""
    native = _NATIVE.get(tensor.type.name)
    if native is not None:
        return np.asarray(_read(gguf, tensor).view(native).reshape(tensor.shape))
    values = dequantize(read_gguf_blocks(gguf, tensor), GGMLQuantizationType[tensor.type.name])
    return np.asarray(values, dtype=np.float32).reshape(tensor.shape)


def read_gguf_blocks(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """One tensor as the file holds it: uint8 [rows, bytes of a row]."""
    bytes_per_row = tensor.shape[-1] // tensor.type.block_elements * tensor.type.block_bytes
    return _read(gguf, tensor).reshape(-1, bytes_per_row)


def _read(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    return np.fromfile(gguf.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
