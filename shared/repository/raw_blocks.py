"""The quantised matrices of a stored GGUF model, as its file holds them."""

from collections.abc import Iterator

import numpy as np

from shared.repository.gguf_config import (
    PERMUTING_ARCHITECTURES,
    gguf_architecture,
    huggingface_name,
    undo_permutation,
)
from shared.repository.gguf_data import read_gguf_blocks
from shared.repository.gguf_file import read_gguf
from shared.repository.stored_model import StoredModel
from shared.repository.weight_check import is_ignored
from shared.repository.weights import heads_to_reorder


def iter_raw_blocks(model: StoredModel) -> Iterator[tuple[str, str, np.ndarray]]:
    """Each quantised matrix once: (Hugging Face name, ggml's name of its type, uint8 [rows, bytes of a row]).

    Rows come in Hugging Face's order; a block lies within a row, so reordering takes none apart. model: its weights are
    a GGUF file, whose checksum the caller has compared. Raises BadModelFile.
    """
    gguf = read_gguf(model.weight_files[0])
    permuted = gguf_architecture(gguf) in PERMUTING_ARCHITECTURES
    for tensor in gguf.tensors.values():
        name = huggingface_name(tensor.name)
        if name is None or is_ignored(name, model.config) or tensor.type.block_elements == 1:
            continue
        data = read_gguf_blocks(gguf, tensor)
        num_heads = heads_to_reorder(name, model.config) if permuted else None
        yield name, tensor.type.name, data if num_heads is None else undo_permutation(data, num_heads)
