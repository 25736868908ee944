"""A step that raised, again sequence by sequence, so that one bad sequence does not cost its batch-mates.

Safe because a step's only effect is to write KV of its own tokens, and sampling is keyed by seed and position.
"""

import numpy as np

from services.worker.engine.interface import Engine, StepInput, StepOutput
from shared.messages.pipeline import RowLogprobs

# One sequence that does not fit alone is to blame itself; two in one step say that the machine is short of memory.
MAX_OUT_OF_MEMORY_ALONE = 1

_OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


class EngineBroken(RuntimeError):
    """The device, not the input, is to blame: the process must end, and its sequences go on elsewhere."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: Python's or NumPy's, a device's, or torch's on the CPU, which raises a plain
    RuntimeError and can be told by its text only."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY_WORDS)


def is_sticky(error: Exception) -> bool:
    """Whether the device's context is lost with this error, as after an access to memory that is not there: whatever is
    asked of it from then on fails. torch has a class for these, CuPy two; to be told without importing either."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"AcceleratorError", "CUDADriverError", "CUDARuntimeError"}) and not is_out_of_memory(error)


def step_one_by_one(engine: Engine, batch: StepInput) -> StepOutput:
    """The step's output, with the sequences that fail alone among its failed ones.

    Raises EngineBroken if several sequences fail and no other does not, or more than one for lack of memory: then a
    worker with more of it computes them, and no request fails. So it does if the device's context is lost.
    """
    num_sequences = len(batch.context_lens)
    whole = StepOutput(np.zeros(len(batch.sampled), dtype=np.int32))
    logprobs: list[RowLogprobs | None] = [None] * len(batch.sampled)
    num_out_of_memory = 0
    last = ""
    for index in range(num_sequences):
        alone, rows = take_one(batch, index)
        try:
            output = engine.step(alone)
        except EngineBroken:
            raise
        except Exception as error:
            if is_sticky(error):
                raise EngineBroken(f"the device's context is lost: {error}") from error
            # Only its text is kept: the error itself would keep the failed step's memory, which the next one needs.
            num_out_of_memory += is_out_of_memory(error)
            whole.failed[index] = _reason(error)
            last = repr(error)
            continue
        _take_over(whole, logprobs, output, rows, index)
    if num_sequences > 1 and len(whole.failed) == num_sequences:
        raise EngineBroken(f"the engine fails on every sequence: {last}")
    if num_out_of_memory > MAX_OUT_OF_MEMORY_ALONE:
        raise EngineBroken(f"no memory for {num_out_of_memory} of {num_sequences} sequences, each alone: {last}")
    if any(entry is not None for entry in logprobs):
        whole.logprobs = logprobs
    return whole


def _take_over(
    whole: StepOutput, logprobs: list[RowLogprobs | None], output: StepOutput, rows: list[int], index: int
) -> None:
    """The output of one sequence, to its place in the whole."""
    for place, row in enumerate(rows):
        whole.tokens[row] = output.tokens[place]
        if output.logprobs:
            logprobs[row] = output.logprobs[place]
        if place in output.errors:
            whole.errors[row] = output.errors[place]
    if output.failed:
        whole.failed[index] = output.failed[0]
    whole.spoiled_blocks += output.spoiled_blocks


def _reason(error: Exception) -> str:
    """For the client; what the engine says of itself stays in the worker's log."""
    if is_out_of_memory(error):
        return "the engine has not enough memory to compute this sequence"
    return f"the engine failed on this sequence ({type(error).__name__})"


def take_one(batch: StepInput, index: int) -> tuple[StepInput, list[int]]:
    """The part of a step that belongs to one sequence, and which of the batch's rows are its own (none or one).

    Raises ValueError for a step whose tokens are not all known.
    """
    if batch.carried is not None:
        raise ValueError("the step before has not told its tokens yet")
    first, last = int(batch.cu_seqlens_q[index]), int(batch.cu_seqlens_q[index + 1])
    rows = np.flatnonzero(batch.sampled == index).tolist()
    alone = StepInput(
        token_ids=batch.token_ids[first:last],
        positions=batch.positions[first:last],
        slot_mapping=batch.slot_mapping[first:last],
        cu_seqlens_q=np.array([0, last - first], dtype=np.int32),
        context_lens=batch.context_lens[index : index + 1],
        block_tables=batch.block_tables[index : index + 1],
        sampled=np.zeros(len(rows), dtype=np.int32),
        output_positions=batch.output_positions[rows],
        rows=[batch.rows[row] for row in rows],
    )
    return alone, rows
