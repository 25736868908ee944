"""Steps that write nothing and mean nothing: what an engine computes before its first request."""

import math

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.interface import RowSampling, StepInput
from shared.messages.sampling import Sampling


def warm_up_step(query_lens: NDArray[np.int32], block_size: int) -> StepInput:
    """Sequences of new tokens only, whose keys and values go nowhere; what comes out means nothing."""
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in query_lens])
    num_sequences, num_blocks = len(query_lens), math.ceil(query_lens.max() / block_size)
    sampling = Sampling(max_tokens=1, temperature=1.0, top_p=0.9)
    return StepInput(
        token_ids=np.zeros(len(positions), dtype=np.int32),
        positions=positions,
        slot_mapping=np.full(len(positions), -1, dtype=np.int64),
        cu_seqlens_q=np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32),
        context_lens=query_lens,
        block_tables=np.zeros((num_sequences, num_blocks), dtype=np.int32),
        sampled=np.arange(num_sequences, dtype=np.int32),
        output_positions=np.zeros(num_sequences, dtype=np.int32),
        rows=[RowSampling(sampling=sampling, num_prompt_tokens=1) for _ in range(num_sequences)],
    )
