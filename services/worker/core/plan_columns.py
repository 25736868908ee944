"""A StepPlan's columns as arrays."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.messages.pipeline import StepPlan


class MalformedPlan(ValueError):
    """Columns that do not fit each other; nothing of the plan can be believed."""


class PlanColumns:
    """One whole plan over S scheduled sequences.

    sequences: uint64 [S]. start, num_scheduled, num_given, position, num_new_blocks: int32 [S]. token_ids: int32
    [sum of num_given]. new_blocks: int32 [sum of num_new_blocks]. forget: uint64. Raises MalformedPlan when lengths
    disagree, a count is negative or a sequence stands twice; plan_checks looks at each sequence's values.
    """

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.sequences = _column(plan.sequences, np.uint64)
        self.start = _column(plan.start, np.int32)
        self.num_scheduled = _column(plan.num_scheduled, np.int32)
        self.num_given = _column(plan.num_given, np.int32)
        self.position = _column(plan.position, np.int32)
        self.num_new_blocks = _column(plan.num_new_blocks, np.int32)
        self.token_ids = _column(plan.token_ids, np.int32)
        self.new_blocks = _column(plan.new_blocks, np.int32)
        self.forget = _column(plan.forget, np.uint64)
        columns = (self.start, self.num_scheduled, self.num_given, self.position, self.num_new_blocks)
        if any(len(column) != len(self.sequences) for column in columns):
            raise MalformedPlan("columns differ in length")
        if len(set(self.sequences.tolist())) != len(self.sequences):
            raise MalformedPlan("a sequence is scheduled twice")
        _check_counts(self.num_given, self.token_ids, "token ids")
        _check_counts(self.num_new_blocks, self.new_blocks, "new blocks")

    @property
    def epoch(self) -> int:
        """Epoch of the plan."""
        return self.plan.epoch

    @property
    def step(self) -> int:
        """Step within the epoch, from 1."""
        return self.plan.step

    @cached_property
    def num_tokens(self) -> int:
        """Tokens that the step would compute."""
        return int(self.num_scheduled.sum())


def _column(data: bytes, dtype: Any) -> NDArray[Any]:
    try:
        return np.frombuffer(data, dtype=dtype)
    except ValueError as error:
        raise MalformedPlan(str(error)) from None


def _check_counts(counts: NDArray[np.int32], values: NDArray[np.int32], label: str) -> None:
    if int(counts.sum(dtype=np.int64)) != len(values) or (len(counts) and int(counts.min()) < 0):
        raise MalformedPlan(f"counts of {label} do not add up")
