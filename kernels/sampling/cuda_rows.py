"""The sampled rows of a batch as the CUDA sampler reads them: host buffers of a fixed size, and what of them is new.

A request is packed once; the same list of rows, step after step, costs a column of positions, and what its histories
and grammars bring.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.sampling.packing import MAX_INT32, PackedRequests, common_fields
from kernels.sampling.rows import Parameters, Row, check_mask, has_penalties, num_mask_words, out_of_range

_ALL = np.uint32(0xFFFFFFFF)


class DeviceRow(ctypes.Structure):
    """How one row is sampled; the fields are told in device_row.cuh."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("mask", ctypes.c_int32),
        ("first_history", ctypes.c_int32),
        ("num_history", ctypes.c_int32),
        ("num_prompt", ctypes.c_int32),
        ("first_bias", ctypes.c_int32),
        ("num_biases", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("seed_low", ctypes.c_uint32),
        ("seed_high", ctypes.c_uint32),
        ("is_greedy", ctypes.c_int32),
        ("temperature", ctypes.c_float),
        ("least", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("repetition_penalty", ctypes.c_float),
        ("num_logprobs", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


_DEVICE_ROW = np.dtype(DeviceRow)
# Of a row that fails for what the host knows: the device only looks whether its logits are finite.
_PLAIN = bytes(DeviceRow(top_p=1.0, mask=-1, is_greedy=1, temperature=1.0, repetition_penalty=1.0, num_logprobs=-1))


@dataclass(frozen=True, slots=True)
class Limits:
    """What the buffers have room for. max_history_tokens, max_biases: of all rows of a step together; max_top: log-
    probabilities beside the chosen token's. A row that finds no room fails alone."""

    vocab_size: int
    max_rows: int
    max_history_tokens: int
    max_biases: int
    max_top: int = 20


class _Packed:
    """The parameters of one request. stranger, early_stranger: an id that is no token, the latter one among those that
    are blocked while early; None if all are tokens."""

    def __init__(self, parameters: Parameters, vocab_size: int) -> None:
        self.parameters = parameters
        self.biased = tuple(parameters.logit_bias)
        self.biases = np.array(list(parameters.logit_bias.values()), dtype=np.float32)
        early = [*parameters.eos_token_ids, *parameters.stop_token_ids]
        always = (*self.biased, *parameters.allowed_token_ids, *parameters.bad_token_ids)
        self.stranger = _stranger(always, vocab_size)
        self.early_stranger = _stranger(early, vocab_size)
        self.allowed = _Bits.of(parameters.allowed_token_ids, vocab_size)
        self.bad = _Bits.of(parameters.bad_token_ids, vocab_size)
        self.bad_or_early = _Bits.of((*parameters.bad_token_ids, *early), vocab_size)
        self.min_tokens = min(parameters.min_tokens, MAX_INT32) if early else 0
        self.is_always_masked = bool(parameters.allowed_token_ids or parameters.bad_token_ids)
        self.has_penalties = has_penalties(parameters)
        self.num_top = -1 if parameters.logprobs is None else min(parameters.logprobs, vocab_size)
        self.is_simple = not (always or early or self.has_penalties or self.num_top >= 0)  # but for a grammar
        self.record = bytes(
            DeviceRow(
                **common_fields(parameters),
                mask=-1,
                num_biases=len(self.biased),
                num_logprobs=self.num_top,
            )
        )


def _stranger(tokens: Iterable[int], vocab_size: int) -> int | None:
    return next((token for token in tokens if not 0 <= token < vocab_size), None)


@dataclass(frozen=True, slots=True)
class _Bits:
    """Tokens as bits of a mask. words: those that have any, each once; bits: uint32, theirs."""

    words: NDArray[np.int64]
    bits: NDArray[np.uint32]

    @classmethod
    def of(cls, tokens: Iterable[int], vocab_size: int) -> "_Bits":
        """Without ids that are no tokens."""
        ids = np.array([token for token in tokens if 0 <= token < vocab_size], dtype=np.int64)
        words, places = np.unique(ids >> 5, return_inverse=True)
        bits = np.zeros(len(words), dtype=np.uint32)
        np.bitwise_or.at(bits, places, np.uint32(1) << (ids & 31).astype(np.uint32))
        return cls(words, bits)


@dataclass(slots=True)
class News:
    """How much of each buffer, from its beginning, is not on the device yet."""

    rows: int = 0
    masks: int = 0
    history_tokens: int = 0
    biases: int = 0


class StagedRows:
    """Host buffers, as tensors for copies to the device: rows uint8 [max_rows, size], masks int32 [max_rows, words],
    histories int32, biased int32 and biases float32. refused: row -> reason, of those that the device must not sample.
    """

    def __init__(self, limits: Limits, is_pinned: bool = False) -> None:
        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, pin_memory=is_pinned)

        self.limits = limits
        self.rows = empty((limits.max_rows, _DEVICE_ROW.itemsize), torch.uint8)
        self.masks = empty((limits.max_rows, num_mask_words(limits.vocab_size)), torch.int32)
        self.histories = empty((limits.max_history_tokens,), torch.int32)
        self.biased = empty((limits.max_biases,), torch.int32)
        self.biases = empty((limits.max_biases,), torch.float32)
        self.refused: dict[int, str] = {}
        self.reports: list[tuple[int, int]] = []  # rows with log-probabilities, and how many of the likeliest tokens
        self.staged: Sequence[Row] | None = None
        self._records: NDArray[Any] = self.rows.numpy().view(_DEVICE_ROW)[:, 0]
        self._mask_words: NDArray[np.uint32] = self.masks.numpy().view(np.uint32)
        self._requests = PackedRequests(lambda parameters: _Packed(parameters, limits.vocab_size))
        self._packed: list[_Packed] = []
        self._never: dict[int, str] = {}  # refused at any position
        self._penalized: list[int] = []
        self._masked: list[int] = []  # rows that may have a mask, in the order of their masks
        self._num_grammars = 0  # of them, the first ones
        self._min_tokens: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._was_early: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def stage(self, rows: Sequence[Row], positions: NDArray[np.int32]) -> News:
        """These rows at these output positions, int32 [rows].

        Nothing but histories and grammar masks may change in a list of rows that was staged before. Raises ValueError
        for histories and masks of another type, and for too many rows.
        """
        if len(positions) != len(rows):
            raise ValueError(f"{len(positions)} positions for {len(rows)} rows")
        news = News()
        is_new = self.staged is not rows
        if is_new:
            self.staged = None  # until all is well
            self._lay_out(rows, news)
        early = positions < self._min_tokens
        self.refused = dict(self._never)
        if is_new or not self._is_plain:
            news.rows = len(rows)
            self._records["position"][: len(rows)] = positions
            self._refuse_early_strangers(early)
            self._write_masks(rows, early, is_new, news)
            self._write_histories(rows, news)
        self._was_early = early
        self.staged = rows
        return news

    @property
    def _is_plain(self) -> bool:
        """Whether no row depends on its position or on what may change."""
        return not (self._masked or self._penalized or (self._records["is_greedy"][: len(self._packed)] == 0).any())

    def _lay_out(self, rows: Sequence[Row], news: News) -> None:
        limits = self.limits
        if len(rows) > limits.max_rows:
            raise ValueError(f"{len(rows)} rows, and room for {limits.max_rows}")
        self._packed = packed = [self._requests.of(row.sampling) for row in rows]
        self._never, self.reports, self._penalized = {}, [], []
        records, grammars, masked = [one.record for one in packed], [], []
        for index, (row, one) in enumerate(zip(rows, packed, strict=True)):
            if one.is_simple and row.grammar_mask is None:
                continue
            reason = self._reason_to_refuse(one, news.biases)
            if reason is not None:
                self._never[index], records[index] = reason, _PLAIN
                continue
            self._append_biases(one, news)
            if one.num_top >= 0:
                self.reports.append((index, one.num_top))
            if one.has_penalties:
                self._penalized.append(index)
            if row.grammar_mask is not None:
                grammars.append(index)
            elif one.is_always_masked or one.min_tokens > 0:
                masked.append(index)
        self._masked, self._num_grammars = grammars + masked, len(grammars)
        mine = self._records[: len(rows)]
        mine[:] = np.frombuffer(bytearray().join(records), _DEVICE_ROW)
        mine["first_bias"] = np.cumsum(mine["num_biases"]) - mine["num_biases"]
        mine["num_prompt"] = [row.num_prompt_tokens for row in rows]
        self._min_tokens = np.array([one.min_tokens for one in packed], dtype=np.int32)

    def _append_biases(self, packed: _Packed, news: News) -> None:
        if packed.biased:
            after = news.biases + len(packed.biased)
            self.biased.numpy()[news.biases : after] = packed.biased
            self.biases.numpy()[news.biases : after] = packed.biases
            news.biases = after

    def _reason_to_refuse(self, packed: _Packed, num_biases: int) -> str | None:
        limits = self.limits
        if packed.stranger is not None:
            return out_of_range(packed.stranger, limits.vocab_size)
        if num_biases + len(packed.biased) > limits.max_biases:
            return f"the step has more than {limits.max_biases} logit biases"
        if packed.num_top > limits.max_top:
            return f"{packed.num_top} log-probabilities, and room for {limits.max_top}"
        return None

    def _refuse_early_strangers(self, early: NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(early).tolist():
            stranger = self._packed[index].early_stranger
            if stranger is not None:
                self.refused.setdefault(index, out_of_range(stranger, self.limits.vocab_size))

    def _write_masks(self, rows: Sequence[Row], early: NDArray[np.bool_], is_new: bool, news: News) -> None:
        changes = is_new or not np.array_equal(early, self._was_early)  # else the grammars alone do
        for slot, index in enumerate(self._masked if changes else self._masked[: self._num_grammars]):
            has_grammar = slot < self._num_grammars
            if not (is_new or has_grammar or early[index] != self._was_early[index]):
                continue
            packed = self._packed[index]
            if not (has_grammar or packed.is_always_masked or early[index]):
                self._records["mask"][index] = -1
                continue
            self._records["mask"][index] = slot
            self._write_mask(self._mask_words[slot], packed, rows[index].grammar_mask, bool(early[index]))
            news.masks = slot + 1

    def _write_mask(
        self, words: NDArray[np.uint32], packed: _Packed, grammar: NDArray[np.uint32] | None, is_early: bool
    ) -> None:
        if grammar is not None:
            check_mask(grammar, self.limits.vocab_size)
        words[:] = _ALL if grammar is None else grammar
        if packed.parameters.allowed_token_ids:
            allowed = words[packed.allowed.words] & packed.allowed.bits
            words[:] = 0
            words[packed.allowed.words] = allowed
        blocked = packed.bad_or_early if is_early else packed.bad
        words[blocked.words] &= ~blocked.bits

    def _write_histories(self, rows: Sequence[Row], news: News) -> None:
        lengths = []
        for index in self._penalized:
            history = rows[index].history
            if history is None:
                history = np.zeros(0, dtype=np.int32)
            if history.dtype != np.int32 or history.ndim != 1:
                raise ValueError("a history is int32 [tokens]")
            begin, end = news.history_tokens, news.history_tokens + len(history)
            room = self.limits.max_history_tokens
            if end > room:
                self.refused.setdefault(index, f"the step has histories of more than {room} tokens")
                end = begin
            self.histories.numpy()[begin:end] = history[: end - begin]
            lengths.append(end - begin)
            news.history_tokens = end
        if lengths:
            self._records["num_history"][self._penalized] = lengths
            self._records["first_history"][self._penalized] = np.cumsum(lengths) - lengths
