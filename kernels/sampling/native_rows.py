"""The sampled rows of a batch as the C++ sampler reads them: packed once, then only positions and histories move."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.native.address import address_of
from kernels.sampling.packing import MAX_INT32, PackedRequests, common_fields
from kernels.sampling.rows import Parameters, Row, check_mask, has_penalties, is_greedy

_MAX_INT64 = 2**63 - 1


class RowParameters(ctypes.Structure):
    """How one row is sampled; the fields are told in sampling.h."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("ids", ctypes.c_uint64),
        ("biases", ctypes.c_uint64),
        ("history", ctypes.c_uint64),
        ("grammar", ctypes.c_uint64),
        ("num_allowed", ctypes.c_int32),
        ("num_bad", ctypes.c_int32),
        ("num_early", ctypes.c_int32),
        ("num_biased", ctypes.c_int32),
        ("num_history", ctypes.c_int32),
        ("num_prompt", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("min_tokens", ctypes.c_int32),
        ("seed_low", ctypes.c_uint32),
        ("seed_high", ctypes.c_uint32),
        ("is_greedy", ctypes.c_int32),
        ("temperature", ctypes.c_float),
        ("least", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("repetition_penalty", ctypes.c_float),
        ("num_logprobs", ctypes.c_int32),
    )


class RowResult(ctypes.Structure):
    """What comes out for one row; the fields are told in sampling.h."""

    _fields_ = (
        ("stranger", ctypes.c_int64),
        ("top_ids", ctypes.c_uint64),
        ("top_logprobs", ctypes.c_uint64),
        ("token", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("logprob", ctypes.c_float),
        ("rank", ctypes.c_int32),
    )


_PARAMETERS, _RESULT = np.dtype(RowParameters), np.dtype(RowResult)


class _Packed:
    """The parameters of one request, without what is the row's own. Holds the arrays that its pointers point to."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        early = [*parameters.eos_token_ids, *parameters.stop_token_ids]
        lists = (parameters.allowed_token_ids, parameters.bad_token_ids, early, list(parameters.logit_bias))
        self.ids = _as_ids(token for tokens in lists for token in tokens)
        self.biases = np.array(list(parameters.logit_bias.values()), dtype=np.float32)
        self.has_penalties = has_penalties(parameters)
        self.num_logprobs = -1 if parameters.logprobs is None else min(parameters.logprobs, MAX_INT32)
        self.needs_logits = (
            not is_greedy(parameters)
            or self.has_penalties
            or self.num_logprobs >= 0
            or bool(parameters.allowed_token_ids or parameters.bad_token_ids or parameters.logit_bias)
        )
        # of a plain greedy row while EOS and stop ids are blocked
        self.needs_logits_before = min(parameters.min_tokens, MAX_INT32) if early else 0
        self.record = bytes(
            RowParameters(
                **common_fields(parameters),
                ids=address_of(self.ids),
                biases=address_of(self.biases),
                num_allowed=len(parameters.allowed_token_ids),
                num_bad=len(parameters.bad_token_ids),
                num_early=len(early),
                num_biased=len(parameters.logit_bias),
                min_tokens=min(parameters.min_tokens, MAX_INT32),
                num_logprobs=self.num_logprobs,
            )
        )


def _as_ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    """int64 ids; what does not fit is no token either way."""
    return np.array([min(max(token, -_MAX_INT64), _MAX_INT64) for token in tokens], dtype=np.int64)


class RowBatch:
    """Rows that are sampled together, step after step.

    parameters, results: structured arrays [rows] of RowParameters and RowResult. Where needs_logits says False, a row
    is plainly greedy: its token is the likeliest one, and nobody needs its logits otherwise.
    """

    def __init__(self, rows: Sequence[Row], packed: Sequence[_Packed], vocab_size: int) -> None:
        self.rows = rows
        self.vocab_size = vocab_size
        self.has_logprobs: list[int] = []
        self.top_slices: dict[int, slice] = {}
        self._packed = packed
        self._penalized: list[int] = []
        self._masked = [index for index, row in enumerate(rows) if row.grammar_mask is not None]
        self._needs_logits: list[int] = []
        self._min_tokens: dict[int, int] = {}  # of rows that need their logits only so long
        for index, one in enumerate(packed):
            if one.needs_logits or rows[index].grammar_mask is not None:
                self._needs_logits.append(index)
                if one.num_logprobs >= 0:
                    self.has_logprobs.append(index)
                if one.has_penalties:
                    self._penalized.append(index)
            elif one.needs_logits_before:
                self._min_tokens[index] = one.needs_logits_before
        self.parameters: NDArray[Any] = np.frombuffer(bytearray().join([one.record for one in packed]), _PARAMETERS)
        self.results: NDArray[Any] = np.zeros(len(rows), _RESULT)
        self.parameters["num_prompt"] = [row.num_prompt_tokens for row in rows]
        self.parameters_address = address_of(self.parameters)
        self.results_address = address_of(self.results)
        self.tokens, self.statuses = self.results["token"], self.results["status"]
        self._positions = self.parameters["position"]
        self._wanting = np.array(self._needs_logits, dtype=np.int32)
        if self.has_logprobs:
            self._make_room_for_logprobs()

    def __len__(self) -> int:
        return len(self.rows)

    def _make_room_for_logprobs(self) -> None:
        counts = self.parameters["num_logprobs"].clip(0, self.vocab_size)
        ends = np.cumsum(counts, dtype=np.int64)
        self.top_ids = np.zeros(ends[-1], dtype=np.int32)
        self.top_logprobs = np.zeros(ends[-1], dtype=np.float32)
        offsets = ends - counts
        self.results["top_ids"] = address_of(self.top_ids) + 4 * offsets
        self.results["top_logprobs"] = address_of(self.top_logprobs) + 4 * offsets
        for index in self.has_logprobs:
            self.top_slices[index] = slice(int(offsets[index]), int(ends[index]))

    def move_to(self, positions: NDArray[np.int32]) -> None:
        """These output positions, int32 [rows], and histories and grammar masks as they are now."""
        if len(positions) != len(self.rows):
            raise ValueError(f"{len(positions)} positions for {len(self.rows)} rows")
        if not self._needs_logits and not self._min_tokens:
            return  # nothing depends on them
        self._positions[:] = positions
        if self._penalized:
            histories = [self.rows[index].history for index in self._penalized]
            self.parameters["history"][self._penalized] = [_address_of_ids(history) for history in histories]
            self.parameters["num_history"][self._penalized] = [0 if one is None else len(one) for one in histories]
        for index in self._masked:
            mask = self.rows[index].grammar_mask
            if mask is not None:
                check_mask(mask, self.vocab_size)
            self.parameters["grammar"][index] = 0 if mask is None else address_of(mask)

    def needs_logits(self) -> NDArray[np.int32]:
        """Indices of rows whose logits must be sampled, at the positions moved to: int32, rising."""
        if not self._min_tokens:
            return self._wanting
        early = [index for index, before in self._min_tokens.items() if self._positions[index] < before]
        return np.array(sorted([*self._needs_logits, *early]), dtype=np.int32)


def _address_of_ids(history: NDArray[np.int32] | None) -> int:
    if history is None or not len(history):
        return 0
    if history.dtype != np.int32 or not history.flags.c_contiguous:
        raise ValueError("a history is int32, without gaps")
    if not history.flags.writeable:
        return address_of(history)
    return ctypes.addressof(ctypes.c_char.from_buffer(history.data))  # a quarter of the time of the other way


class RowBatches:
    """Remembers how rows are packed: the same list of rows costs nothing, the same requests in another one little."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._last: RowBatch | None = None
        self._requests = PackedRequests(_Packed)

    def of(self, rows: Sequence[Row], positions: NDArray[np.int32]) -> RowBatch:
        """The batch of these rows, moved to these output positions, int32 [rows].

        Nothing but histories and grammar masks may change in a list of rows that was seen before.
        """
        if self._last is None or self._last.rows is not rows:
            self._last = RowBatch(rows, [self._requests.of(row.sampling) for row in rows], self.vocab_size)
        self._last.move_to(positions)
        return self._last
