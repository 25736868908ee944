"""A step that raised, again sequence by sequence, so that one bad sequence does not cost its batch-mates.

Safe because a step's only effect is to write KV of its own tokens, and sampling is keyed by seed and position.
"""

import numpy as np

from services.worker.engine.interface import Engine, StepInput, StepOutput
from shared.messages.pipeline import RowLogprobs


class EngineBroken(RuntimeError):
    """Every sequence of the step fails even alone: the device, not the input, is to blame."""


def step_one_by_one(engine: Engine, batch: StepInput) -> tuple[StepOutput, dict[int, str]]:
    """The step's output and, by index in the batch, why sequences failed. Raises EngineBroken if several all did."""
    num_sequences = len(batch.context_lens)
    tokens = np.zeros(len(batch.sampled), dtype=np.int32)
    logprobs: list[RowLogprobs | None] = [None] * len(batch.sampled)
    errors: dict[int, str] = {}
    failed: dict[int, str] = {}
    last: Exception | None = None
    for index in range(num_sequences):
        alone, rows = take_one(batch, index)
        try:
            output = engine.step(alone)
        except Exception as error:
            failed[index] = f"the engine failed on this sequence ({type(error).__name__})"
            last = error
            continue
        for place, row in enumerate(rows):
            tokens[row] = output.tokens[place]
            if output.logprobs:
                logprobs[row] = output.logprobs[place]
            if place in output.errors:
                errors[row] = output.errors[place]
    if num_sequences > 1 and len(failed) == num_sequences:
        raise EngineBroken(f"the engine fails on every sequence: {last!r}") from last
    return StepOutput(tokens, logprobs, errors), failed


def take_one(batch: StepInput, index: int) -> tuple[StepInput, list[int]]:
    """The part of a step that belongs to one sequence, and which of the batch's rows are its own (none or one)."""
    first, last = int(batch.cu_seqlens_q[index]), int(batch.cu_seqlens_q[index + 1])
    rows = [int(row) for row in np.flatnonzero(batch.sampled == index)]
    alone = StepInput(
        token_ids=batch.token_ids[first:last],
        positions=batch.positions[first:last],
        slot_mapping=batch.slot_mapping[first:last],
        cu_seqlens_q=np.array([0, last - first], dtype=np.int32),
        context_lens=batch.context_lens[index : index + 1],
        block_tables=batch.block_tables[index : index + 1],
        sampled=np.zeros(len(rows), dtype=np.int32),
        rows=[batch.rows[row] for row in rows],
    )
    return alone, rows
