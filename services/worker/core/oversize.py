"""A frame that no message can hold (protocol rule 17)."""

import msgspec
import numpy as np

from shared.messages.pipeline import RowError, Rows


def without_rows(frame: Rows, reason: str) -> Rows:
    """The same step, with an error for each of its rows: the step must be in the log, its output cannot."""
    sequences = np.frombuffer(frame.sequences, dtype=np.uint64).tolist()
    errors = [*frame.errors, *(RowError(sequence, reason) for sequence in sequences)]
    return msgspec.structs.replace(
        frame, sequences=b"", positions=b"", tokens=b"", prefix_hashes=b"", logprobs=[], errors=errors
    )
