"""A StepPlan's columns as arrays."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.messages.pipeline import StepPlan

_PER_SEQUENCE = ("start", "num_scheduled", "num_given", "position", "num_new_blocks")


class MalformedPlan(ValueError):
    """Columns that do not fit each other; nothing of the plan can be believed."""


class PlanColumns:
    """One whole plan over S scheduled sequences. Arrays are made when they are asked for.

    sequences: uint64 [S]. start, num_scheduled, num_given, position, num_new_blocks: int32 [S]. token_ids: int32
    [sum of num_given]. new_blocks: int32 [sum of num_new_blocks]. forget: uint64. Raises MalformedPlan when lengths
    disagree, a count is negative or a sequence stands twice; plan_checks looks at each sequence's values.
    known_unique: the sequences column of an earlier plan, which needs no second look.
    """

    def __init__(self, plan: StepPlan, known_unique: bytes = b"") -> None:
        self.plan = plan
        self.epoch = plan.epoch
        self.step = plan.step
        self.num_sequences, odd_bytes = divmod(len(plan.sequences), 8)
        lengths = {len(getattr(plan, name)) for name in _PER_SEQUENCE}
        columns_of_eight = (plan.forget, plan.swap_out, plan.swap_in)
        if odd_bytes or lengths != {4 * self.num_sequences} or any(len(column) % 8 for column in columns_of_eight):
            raise MalformedPlan("columns differ in length")
        if plan.sequences != known_unique and len(set(self.sequences.tolist())) != self.num_sequences:
            raise MalformedPlan("a sequence is scheduled twice")
        _check_counts(plan.num_given, plan.token_ids, "token ids")
        _check_counts(plan.num_new_blocks, plan.new_blocks, "new blocks")

    @cached_property
    def sequences(self) -> NDArray[np.uint64]:
        """See the class."""
        return np.frombuffer(self.plan.sequences, dtype=np.uint64)

    @cached_property
    def start(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.start, dtype=np.int32)

    @cached_property
    def num_scheduled(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.num_scheduled, dtype=np.int32)

    @cached_property
    def num_given(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.num_given, dtype=np.int32)

    @cached_property
    def position(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.position, dtype=np.int32)

    @cached_property
    def num_new_blocks(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.num_new_blocks, dtype=np.int32)

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.token_ids, dtype=np.int32)

    @cached_property
    def new_blocks(self) -> NDArray[np.int32]:
        """See the class."""
        return np.frombuffer(self.plan.new_blocks, dtype=np.int32)

    @cached_property
    def forget(self) -> NDArray[np.uint64]:
        """See the class."""
        return np.frombuffer(self.plan.forget, dtype=np.uint64)

    @cached_property
    def swap_out(self) -> NDArray[np.int32]:
        """int32 [n, 2]: block and slot."""
        return np.frombuffer(self.plan.swap_out, dtype=np.int32).reshape(-1, 2)

    @cached_property
    def swap_in(self) -> NDArray[np.int32]:
        """int32 [n, 2]: slot and block."""
        return np.frombuffer(self.plan.swap_in, dtype=np.int32).reshape(-1, 2)

    @property
    def has_swaps(self) -> bool:
        """Whether any block moves out or back."""
        return bool(self.plan.swap_out or self.plan.swap_in)


def _check_counts(counts: bytes, values: bytes, label: str) -> None:
    if not values and not any(counts):
        return
    numbers: NDArray[Any] = np.frombuffer(counts, dtype=np.int32)
    if 4 * int(numbers.sum(dtype=np.int64)) != len(values) or not len(numbers) or int(numbers.min()) < 0:
        raise MalformedPlan(f"counts of {label} do not add up")
