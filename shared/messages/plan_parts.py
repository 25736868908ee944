"""A plan that is too large for one message travels in parts (protocol rule 17).

Every column is a string of bytes, and so are the block table and the history of a new sequence: a part holds some
bytes of some of them, and joining is concatenation. Nothing else has to be known about a plan here.

    plan   |forget|new a|new b ------------|sequences|start|...|token_ids ---------|new_blocks|
    parts  |------------------| |--------------| |----------------| |-------------------------|
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from shared.messages.codec import WireError, encode
from shared.messages.pipeline import NewSequence, StepPlan

ITEM_BYTES = {
    "forget": 8,
    "sequences": 8,
    "start": 4,
    "num_scheduled": 4,
    "num_given": 4,
    "position": 4,
    "num_new_blocks": 4,
    "new_blocks": 4,
    "token_ids": 4,
    "swap_out": 8,
    "swap_in": 8,
}
NEW_COLUMNS = ("block_ids", "history")
# an empty bytes field takes 2 bytes, a long one 5 more than its contents; the list of new sequences and the numbers
# of the part grow by as much
OVERHEAD_BYTES = 3 * (len(ITEM_BYTES) + 1) + 16
NEW_OVERHEAD_BYTES = 3 * len(NEW_COLUMNS)


def split_plan(plan: StepPlan, max_bytes: int) -> list[StepPlan]:
    """The plan in as few parts as needed, each of at most max_bytes once encoded. A plan that fits stays as it is.

    A NewSequence whose block table or history does not fit continues under the same sequence id in the next part.
    Raises ValueError if max_bytes is too small for the fixed fields of a part or of a new sequence.
    """
    if len(encode(plan)) <= max_bytes:
        return [plan]
    parts = _Parts(plan, max_bytes)
    parts.add_column("forget", plan.forget)
    for new in plan.new:
        parts.add_new(new)
    for name in ITEM_BYTES:
        if name != "forget":
            parts.add_column(name, getattr(plan, name))
    return parts.finish()


def join_plans(parts: Iterable[StepPlan]) -> StepPlan:
    """The plan that was split. Raises WireError unless these are all parts of one plan, in any order."""
    ordered = sorted(parts, key=lambda part: part.part)
    if not ordered:
        raise WireError("a plan has at least one part")
    first = ordered[0]
    of_one_plan = {(part.epoch, part.step, part.num_parts) for part in ordered}
    if len(of_one_plan) != 1 or [part.part for part in ordered] != list(range(first.num_parts)):
        raise WireError(f"parts {[(part.epoch, part.step, part.part, part.num_parts) for part in ordered]}")
    if first.num_parts == 1:
        return first
    columns: dict[str, Any] = {name: b"".join(getattr(part, name) for part in ordered) for name in ITEM_BYTES}
    pieces: dict[int, list[NewSequence]] = {}
    for part in ordered:
        for piece in part.new:
            pieces.setdefault(piece.sequence, []).append(piece)
    new = [
        msgspec.structs.replace(
            same[0], **{name: b"".join(getattr(piece, name) for piece in same) for name in NEW_COLUMNS}
        )
        for same in pieces.values()
    ]
    return StepPlan(epoch=first.epoch, step=first.step, new=new, **columns)


class _Parts:
    """Fills one part after the other."""

    def __init__(self, plan: StepPlan, max_bytes: int) -> None:
        self._plan = plan
        fixed_bytes = len(encode(StepPlan(epoch=plan.epoch, step=plan.step))) + OVERHEAD_BYTES
        self._max_room = max_bytes - fixed_bytes
        if self._max_room < max(ITEM_BYTES.values()):
            raise ValueError(f"a part of a plan takes {fixed_bytes} bytes and its contents, {max_bytes} are too few")
        self._finished: list[StepPlan] = []
        self._begin()

    def _begin(self) -> None:
        self._room = self._max_room
        self._columns: dict[str, Any] = {}
        self._new: list[NewSequence] = []

    def _flush(self) -> None:
        self._finished.append(StepPlan(epoch=self._plan.epoch, step=self._plan.step, new=self._new, **self._columns))
        self._begin()

    def _take(self, data: bytes, offset: int, item_bytes: int) -> bytes:
        """As many whole items from offset on as there is room for."""
        room = self._room - self._room % item_bytes
        taken = data[offset : offset + room]
        self._room -= len(taken)
        return taken

    def add_column(self, name: str, data: bytes) -> None:
        """Spread one column over this part and the next ones."""
        offset = 0
        while offset < len(data):
            taken = self._take(data, offset, ITEM_BYTES[name])
            if taken:
                self._columns[name] = taken
                offset += len(taken)
            if offset < len(data):
                self._flush()

    def add_new(self, new: NewSequence) -> None:
        """Spread one new sequence over this part and the next ones; each piece repeats its fixed fields."""
        head = msgspec.structs.replace(new, **dict.fromkeys(NEW_COLUMNS, b""))
        head_bytes = len(encode(head)) + NEW_OVERHEAD_BYTES
        if head_bytes + ITEM_BYTES["token_ids"] > self._max_room:
            raise ValueError(f"sequence {new.sequence} takes {head_bytes} bytes, a part has {self._max_room}")
        offsets = dict.fromkeys(NEW_COLUMNS, 0)
        while True:
            if self._room < head_bytes + ITEM_BYTES["token_ids"]:
                self._flush()
            self._room -= head_bytes
            piece = {}
            for name in NEW_COLUMNS:
                piece[name] = self._take(getattr(new, name), offsets[name], ITEM_BYTES["token_ids"])
                offsets[name] += len(piece[name])
            self._new.append(msgspec.structs.replace(head, **piece))
            if all(offsets[name] == len(getattr(new, name)) for name in NEW_COLUMNS):
                return
            self._flush()

    def finish(self) -> list[StepPlan]:
        """All parts, numbered."""
        self._flush()
        num_parts = len(self._finished)
        return [
            msgspec.structs.replace(part, part=number, num_parts=num_parts)
            for number, part in enumerate(self._finished)
        ]
