"""The quantised matrices of a stored GGUF model, as its file holds them."""

from collections.abc import Iterator

import numpy as np

from shared.repository.gguf_data import read_gguf_blocks
from shared.repository.gguf_file import read_gguf
from shared.repository.gguf_parameters import in_huggingface_order, iter_gguf_parameters
from shared.repository.stored_model import StoredModel


def iter_raw_blocks(model: StoredModel) -> Iterator[tuple[str, str, np.ndarray]]:
    """Each quantised matrix once: (Hugging Face name, ggml's name of its type, uint8 [rows, bytes of a row]).

    Rows come in Hugging Face's order; a block lies within a row, so reordering takes none apart. model: its weights are
    a GGUF file, whose checksum the caller has compared. Raises BadModelFile.
    """
    gguf = read_gguf(model.weight_files[0])
    for name, tensor, num_heads in iter_gguf_parameters(gguf, model.config):
        if tensor.type.block_elements > 1:
            yield name, tensor.type.name, in_huggingface_order(read_gguf_blocks(gguf, tensor), num_heads)
