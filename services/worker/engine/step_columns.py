"""A step's columns as the C++ side reads them."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.decoder.structs import StepStruct
from kernels.native.address import address_of
from services.worker.engine.interface import StepInput


@dataclass(slots=True)
class StepColumns:
    """struct: points into kept, which must live as long as it is used. likeliest: int32 [R], -1 where a logit is not
    finite. token_is_finite: uint8 [T]."""

    struct: StepStruct
    likeliest: NDArray[np.int32]
    token_is_finite: NDArray[np.uint8]
    kept: tuple[NDArray[Any], ...]

    @classmethod
    def of(cls, batch: StepInput, slots: NDArray[np.int32], logits: Tensor) -> Self:
        """slots: int32 [R], the row of logits, float32 [slots, vocabulary], that takes a row's logits, or -1."""
        row_tokens = batch.cu_seqlens_q[1:][batch.sampled] - 1
        likeliest = np.empty(len(row_tokens), dtype=np.int32)
        token_is_finite = np.empty(len(batch.token_ids), dtype=np.uint8)
        columns: tuple[NDArray[Any], ...] = (
            np.ascontiguousarray(batch.token_ids, dtype=np.int32),
            np.ascontiguousarray(batch.positions, dtype=np.int64),
            np.ascontiguousarray(batch.slot_mapping, dtype=np.int64),
            np.ascontiguousarray(batch.cu_seqlens_q, dtype=np.int32),
            np.ascontiguousarray(batch.context_lens, dtype=np.int32),
            np.ascontiguousarray(batch.block_tables, dtype=np.int32),
            row_tokens,
            slots,
        )
        struct = StepStruct(
            len(batch.token_ids),
            len(batch.context_lens),
            len(row_tokens),
            batch.block_tables.shape[1],
            *(address_of(column) for column in columns),
            logits.data_ptr(),
            address_of(likeliest),
            address_of(token_is_finite),
        )
        return cls(struct, likeliest, token_is_finite, columns)
