"""The sampled rows of a batch as the C++ sampler reads them: packed once, then only positions and histories move."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.sampling.rows import Parameters, Row, has_penalties, is_greedy

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MAX_PACKED = 4096


class RowParameters(ctypes.Structure):
    """How one row is sampled; the fields are told in sampling.h."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("ids", ctypes.c_uint64),
        ("biases", ctypes.c_uint64),
        ("history", ctypes.c_uint64),
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


class _Packed:
    """The parameters of one request, without what is the row's own. Holds the arrays that its pointers point to."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        early = [*parameters.eos_token_ids, *parameters.stop_token_ids]
        lists = (parameters.allowed_token_ids, parameters.bad_token_ids, early, list(parameters.logit_bias))
        self.ids = _as_ids(token for tokens in lists for token in tokens)
        self.biases = np.array(list(parameters.logit_bias.values()), dtype=np.float32)
        with np.errstate(divide="ignore"):
            least = float(np.log(np.float32(parameters.min_p))) if parameters.min_p > 0 else float("-inf")
        self.needs_logits = (
            not is_greedy(parameters)
            or has_penalties(parameters)
            or parameters.logprobs is not None
            or bool(parameters.allowed_token_ids or parameters.bad_token_ids or parameters.logit_bias)
        )
        # of a plain greedy row while EOS and stop ids are blocked
        self.needs_logits_before = min(parameters.min_tokens, _MAX_INT32) if early else 0
        self.record = bytes(
            RowParameters(
                top_p=parameters.top_p,
                frequency_penalty=parameters.frequency_penalty,
                presence_penalty=parameters.presence_penalty,
                ids=self.ids.ctypes.data,
                biases=self.biases.ctypes.data,
                num_allowed=len(parameters.allowed_token_ids),
                num_bad=len(parameters.bad_token_ids),
                num_early=len(early),
                num_biased=len(parameters.logit_bias),
                min_tokens=min(parameters.min_tokens, _MAX_INT32),
                seed_low=parameters.seed & 0xFFFFFFFF,
                seed_high=(parameters.seed >> 32) & 0xFFFFFFFF,
                is_greedy=is_greedy(parameters),
                temperature=parameters.temperature,
                least=least,
                top_k=min(max(parameters.top_k, 0), _MAX_INT32),
                repetition_penalty=parameters.repetition_penalty,
                num_logprobs=-1 if parameters.logprobs is None else min(parameters.logprobs, _MAX_INT32),
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
        self.parameters: NDArray[Any] = np.frombuffer(
            bytearray().join(one.record for one in packed), dtype=np.dtype(RowParameters)
        )
        self.results: NDArray[Any] = np.zeros(len(rows), dtype=np.dtype(RowResult))
        self.parameters_address = self.parameters.ctypes.data
        self.results_address = self.results.ctypes.data
        self.all_indices = np.arange(len(rows), dtype=np.int32)
        self.parameters["num_prompt"] = [row.num_prompt_tokens for row in rows]
        self.has_logprobs = [index for index, one in enumerate(packed) if one.parameters.logprobs is not None]
        self._position = self.parameters["position"]
        self._penalized = [index for index, one in enumerate(packed) if has_penalties(one.parameters)]
        self._packed = packed
        self._needs_logits = np.array([one.needs_logits for one in packed], dtype=np.bool_)
        self._needs_logits_before = np.array([one.needs_logits_before for one in packed], dtype=np.int32)
        self._has_min_tokens = bool(self._needs_logits_before.any())
        self._make_room_for_logprobs()

    def __len__(self) -> int:
        return len(self.rows)

    def _make_room_for_logprobs(self) -> None:
        counts = self.parameters["num_logprobs"].clip(0, self.vocab_size)
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        self.top_ids = np.zeros(total, dtype=np.int32)
        self.top_logprobs = np.zeros(total, dtype=np.float32)
        offsets = ends - counts
        self.results["top_ids"] = self.top_ids.ctypes.data + 4 * offsets
        self.results["top_logprobs"] = self.top_logprobs.ctypes.data + 4 * offsets
        self.top_slices = {index: slice(int(offsets[index]), int(ends[index])) for index in self.has_logprobs}

    def move_to(self, positions: NDArray[np.int32] | None = None) -> None:
        """The rows' output positions, int32 [rows] (by default each row's own), and histories as they are now."""
        if positions is None:
            positions = np.fromiter((row.position for row in self.rows), dtype=np.int32, count=len(self.rows))
        self._position[:] = positions
        for index in self._penalized:
            history = self.rows[index].history
            if history is None:
                self.parameters["num_history"][index] = 0
                continue
            if history.dtype != np.int32 or not history.flags.c_contiguous:
                raise ValueError("a history is int32, without gaps")
            self.parameters["history"][index] = history.ctypes.data
            self.parameters["num_history"][index] = len(history)

    def needs_logits(self) -> NDArray[np.int32]:
        """Indices of rows whose logits must be sampled, at the positions moved to: int32, rising."""
        mask = self._needs_logits
        if self._has_min_tokens:
            mask = mask | (self._position < self._needs_logits_before)
        return np.flatnonzero(mask).astype(np.int32)


class RowBatches:
    """Remembers how rows are packed: the same list of rows costs nothing, the same requests in another one little."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._last: RowBatch | None = None
        self._packed: dict[int, _Packed] = {}

    def of(self, rows: Sequence[Row], positions: NDArray[np.int32] | None = None) -> RowBatch:
        """The batch of these rows, moved to these positions (int32 [rows], by default each row's own).

        Nothing but positions and histories may change in a list of rows that was seen before.
        """
        if self._last is None or self._last.rows is not rows:
            if len(self._packed) > _MAX_PACKED:
                self._packed.clear()
            self._last = RowBatch(rows, [self._pack(row.sampling) for row in rows], self.vocab_size)
        self._last.move_to(positions)
        return self._last

    def _pack(self, parameters: Parameters) -> _Packed:
        packed = self._packed.get(id(parameters))
        if packed is None:  # it holds the parameters, so their id stays theirs
            packed = self._packed[id(parameters)] = _Packed(parameters)
        return packed
