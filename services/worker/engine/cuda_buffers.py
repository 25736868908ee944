"""A step's columns in device memory that stays where it is, since captured graphs read it from there."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paged_attention.cuda import DeviceItems
from kernels.paged_attention.items import PREFILL_ROWS, cut, most_decode_items
from services.worker.engine.interface import StepInput
from services.worker.models.cuda import Limits, StepTensors

_NO_SLOT, _NO_ITEM, _NO_ROW = -1, -1, -1


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """Of a model's attention; windows: the sliding windows of its layers."""

    num_heads: int
    num_kv_heads: int
    windows: frozenset[int | None]

    @property
    def group(self) -> int:
        """Query heads of a key/value head."""
        return self.num_heads // self.num_kv_heads


class _Turns:
    """The two sets of the host's doubles, of which one is written while the other may still be read: a step is loaded
    while the one before it runs. now: the set whose turn it is."""

    def __init__(self, device: torch.device) -> None:
        self.is_pinned = device.type == "cuda"
        self.now = 0
        self._read = [torch.cuda.Event(), torch.cuda.Event()] if self.is_pinned else []  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """The other set's turn, once all copies out of it are done."""
        self.now = 1 - self.now
        if self._read:
            self._read[self.now].synchronize()

    def end(self) -> None:
        """All copies out of the set are begun."""
        if self._read:
            self._read[self.now].record()


class _Column:
    """A tensor on the device with its doubles on the host, from which it is copied without a wait."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, turns: _Turns) -> None:
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        self._hosts = [torch.zeros(shape, dtype=dtype, pin_memory=turns.is_pinned) for _ in range(2)]
        self._turns = turns

    def load(self, values: NDArray[np.generic], size: int, fill: int) -> Tensor:
        """The first `size` rows: the values, then `fill`."""
        count, host = len(values), self._hosts[self._turns.now]
        numbers = host.numpy()
        numbers[:count] = values
        numbers[count:size] = fill
        self.device[:size].copy_(host[:size], non_blocking=True)
        return self.device[:size]

    def load_table(self, values: NDArray[np.int32]) -> Tensor:
        """The upper left corner; the whole tensor comes back, so that its stride is always the same."""
        num_rows, num_columns = values.shape
        # In one piece: torch would gather any other in memory that is not pinned, whose copy may wait for the device.
        corner = self._hosts[self._turns.now].view(-1)[: values.size].view(num_rows, num_columns)
        corner.numpy()[:] = values
        self.device[:num_rows, :num_columns].copy_(corner, non_blocking=True)
        return self.device


class StepBuffers:
    """Room for the largest step. What load returns holds until it is called again."""

    def __init__(self, heads: HeadCounts, limits: Limits, max_num_blocks: int, device: torch.device) -> None:
        """max_num_blocks: of one sequence."""
        self._heads = heads
        self._limits = limits
        tokens, sequences = limits.max_num_tokens, limits.max_num_seqs
        self._most_decode = most_decode_items(sequences, limits.num_parallel, heads.num_kv_heads)
        most_prefill = sequences + tokens * heads.group // PREFILL_ROWS

        self._turns = _Turns(device)

        def column(*shape: int, dtype: torch.dtype = torch.int32) -> _Column:
            return _Column(shape, dtype, device, self._turns)

        self._token_ids, self._positions, self._slot_mapping = (column(tokens, dtype=torch.int64) for _ in range(3))
        self._carried = column(tokens, dtype=torch.int64)
        self._row_tokens = column(sequences, dtype=torch.int64)
        self._cu_seqlens_q = column(sequences + 1)
        self._context_lens = column(sequences)
        self._block_tables = column(sequences, max_num_blocks)
        self._items = {
            window: (column(self._most_decode, 4), column(sequences, 2), column(most_prefill, 2))
            for window in heads.windows
        }

    def load(self, batch: StepInput, num_sequences: int | None = None, tokens: Tensor | None = None) -> StepTensors:
        """Copies of the batch's columns. tokens: int32 on the device, those of the step before, for a batch that needs
        them.

        num_sequences: for a batch of one sampled token a sequence: as if it had so many, of which the last ones compute
        something that nobody reads. A step of that size always launches the same: it can be captured and replayed.
        """
        is_padded = num_sequences is not None
        size = len(batch.context_lens) if num_sequences is None else num_sequences
        num_tokens = size if is_padded else len(batch.token_ids)
        row_tokens = batch.cu_seqlens_q[1:][batch.sampled].astype(np.int64) - 1
        if is_padded:
            row_tokens = np.arange(size)
        self._turns.begin()
        cu_seqlens_q = self._cu_seqlens_q.load(batch.cu_seqlens_q, size + 1, int(batch.cu_seqlens_q[-1]))
        columns = StepTensors(
            token_ids=self._load_token_ids(batch, num_tokens, tokens),
            positions=self._positions.load(batch.positions, num_tokens, 0),
            slot_mapping=self._slot_mapping.load(batch.slot_mapping, num_tokens, _NO_SLOT),
            row_tokens=self._row_tokens.load(row_tokens, len(row_tokens), 0),
            cu_seqlens_q=cu_seqlens_q,
            context_lens=self._context_lens.load(batch.context_lens, size, 0),
            block_tables=self._block_tables.load_table(batch.block_tables),
            items={window: self._load_items(window, batch, size, is_padded) for window in self._items},
        )
        self._turns.end()
        return columns

    def _load_token_ids(self, batch: StepInput, num_tokens: int, tokens: Tensor | None) -> Tensor:
        token_ids = self._token_ids.load(batch.token_ids, num_tokens, 0)
        if batch.carried is not None and tokens is not None:
            rows = self._carried.load(batch.carried, num_tokens, _NO_ROW)
            token_ids.copy_(torch.where(rows < 0, token_ids, tokens[rows.clamp_min(0)]))
        return token_ids

    def _load_items(self, window: int | None, batch: StepInput, size: int, is_padded: bool) -> DeviceItems:
        heads, columns = self._heads, self._items[window]
        items = cut(
            batch.cu_seqlens_q,
            batch.context_lens,
            heads.group,
            heads.num_kv_heads,
            self._limits.num_parallel,
            window or 0,
        )
        num_decode = len(items.decode)
        if is_padded:
            num_decode = most_decode_items(size, self._limits.num_parallel, heads.num_kv_heads)
        return DeviceItems(
            decode=columns[0].load(items.decode, num_decode, _NO_ITEM),
            splits=columns[1].load(items.splits, size, 0),
            prefill=columns[2].load(items.prefill, len(items.prefill), _NO_ITEM),
            num_decode=num_decode,
            num_prefill=len(items.prefill),
            is_split=is_padded or items.num_slots > 0,
        )
