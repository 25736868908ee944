"""What rank 0 tells the others, and how it lies in their pipe: four bytes of length, then msgpack.

Not messages of the bus: both ends are of one release and one process tree. A step goes without what only sampling asks
for, since rank 0 alone samples.
"""

import struct
from collections.abc import Iterator
from typing import IO

import msgspec
import numpy as np

from services.worker.config import WorkerConfig
from services.worker.engine.interface import StepInput, Swaps

_LENGTH = struct.Struct("<I")


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first order: load your part of this model. folder: where the ranks meet. config: rank 0's own."""

    rank: int
    size: int
    folder: str
    model_version: str
    config: WorkerConfig


class WarmUp(msgspec.Struct, frozen=True, tag=True):
    """Call the engine's warm_up."""


class Swap(msgspec.Struct, frozen=True, tag=True):
    """Move your part of these blocks; the columns of Swaps as their little-endian bytes."""

    out: bytes
    back: bytes

    @classmethod
    def of(cls, swaps: Swaps) -> "Swap":
        """The order to move these."""
        out, back = (pairs.astype("<i4", copy=False).tobytes() for pairs in (swaps.out, swaps.back))
        return cls(out=out, back=back)

    def swaps(self) -> Swaps:
        """What is to be moved."""
        return Swaps(*(np.frombuffer(pairs, dtype="<i4").reshape(-1, 2).copy() for pairs in (self.out, self.back)))


class Step(msgspec.Struct, frozen=True, tag=True):
    """Compute a step; the columns of StepInput as their little-endian bytes. num_blocks: columns of block_tables;
    carried: empty for None."""

    token_ids: bytes
    positions: bytes
    slot_mapping: bytes
    cu_seqlens_q: bytes
    context_lens: bytes
    block_tables: bytes
    num_blocks: int
    sampled: bytes
    carried: bytes

    @classmethod
    def of(cls, batch: StepInput) -> "Step":
        """The order to compute this batch."""
        return cls(
            token_ids=batch.token_ids.astype("<i4", copy=False).tobytes(),
            positions=batch.positions.astype("<i8", copy=False).tobytes(),
            slot_mapping=batch.slot_mapping.astype("<i8", copy=False).tobytes(),
            cu_seqlens_q=batch.cu_seqlens_q.astype("<i4", copy=False).tobytes(),
            context_lens=batch.context_lens.astype("<i4", copy=False).tobytes(),
            block_tables=batch.block_tables.astype("<i4", copy=False).tobytes(),
            num_blocks=batch.block_tables.shape[1],
            sampled=batch.sampled.astype("<i4", copy=False).tobytes(),
            carried=b"" if batch.carried is None else batch.carried.astype("<i4", copy=False).tobytes(),
        )

    def batch(self) -> StepInput:
        """The batch, with nothing to sample by."""
        sampled = np.frombuffer(self.sampled, dtype="<i4")
        context_lens = np.frombuffer(self.context_lens, dtype="<i4")
        tables = np.frombuffer(self.block_tables, dtype="<i4")
        return StepInput(
            token_ids=np.frombuffer(self.token_ids, dtype="<i4"),
            positions=np.frombuffer(self.positions, dtype="<i8").copy(),  # torch wants what it could write to
            slot_mapping=np.frombuffer(self.slot_mapping, dtype="<i8").copy(),
            cu_seqlens_q=np.frombuffer(self.cu_seqlens_q, dtype="<i4").copy(),
            context_lens=context_lens.copy(),
            block_tables=tables.reshape(len(context_lens), self.num_blocks).copy(),
            sampled=sampled.copy(),
            output_positions=np.zeros(len(sampled), dtype=np.int32),
            rows=[],
            carried=np.frombuffer(self.carried, dtype="<i4") if self.carried else None,
        )


Order = Join | WarmUp | Step | Swap

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Order).decode


def to_bytes(order: Order) -> bytes:
    """The order as it goes into a pipe."""
    body = _encode(order)
    return _LENGTH.pack(len(body)) + body


def orders_from(pipe: IO[bytes]) -> Iterator[Order]:
    """Each order as it comes, until the other end is closed; what was cut off by that is left out.

    Raises msgspec.MsgspecError on what is no order.
    """
    while len(head := pipe.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        body = pipe.read(length)
        if len(body) < length:
            return
        yield _decode(body)
