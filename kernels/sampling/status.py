"""How the compiled samplers end a row (RowStatus in sampling.h and device_row.cuh), and the error that it becomes."""

from enum import IntEnum

from kernels.sampling.rows import NOT_FINITE, NOTHING_LEFT, out_of_range


class RowStatus(IntEnum):
    """0 for a token; else the row fails alone."""

    SAMPLED = 0
    NOT_FINITE = 1
    NOTHING_LEFT = 2
    ID_OUT_OF_RANGE = 3


def reason_of(status: int, stranger: int, vocab_size: int) -> str:
    """Of a row that failed. stranger: the id that is no token, if that is why. Raises ValueError for no status."""
    match RowStatus(status):
        case RowStatus.NOT_FINITE:
            return NOT_FINITE
        case RowStatus.ID_OUT_OF_RANGE:
            return out_of_range(stranger, vocab_size)
        case RowStatus.NOTHING_LEFT:
            return NOTHING_LEFT
        case RowStatus.SAMPLED:
            raise ValueError("a row that was sampled did not fail")
