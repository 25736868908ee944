"""Requests as the compiled samplers read them: what their records share, and packing each request once."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from kernels.sampling.rows import Parameters, is_greedy

MAX_INT32 = 2**31 - 1
_MAX_PACKED = 4096


class Packed(Protocol):
    """Of one request, without what is the row's own. It holds the parameters, so their id stays theirs."""

    @property
    def parameters(self) -> Parameters: ...


AnyPacked = TypeVar("AnyPacked", bound=Packed)


class PackedRequests(Generic[AnyPacked]):
    """pack is called once for each request, however many lists its rows are in."""

    def __init__(self, pack: Callable[[Parameters], AnyPacked]) -> None:
        self._pack = pack
        self._by_id: dict[int, AnyPacked] = {}

    def of(self, parameters: Parameters) -> AnyPacked:
        packed = self._by_id.get(id(parameters))
        if packed is None:
            if len(self._by_id) >= _MAX_PACKED:
                self._by_id.clear()
            packed = self._by_id[id(parameters)] = self._pack(parameters)
        return packed


def common_fields(parameters: Parameters) -> dict[str, Any]:
    """The fields that sampling.h and device_row.cuh tell alike, by their names."""
    with np.errstate(divide="ignore"):
        least = float(np.log(np.float32(parameters.min_p))) if parameters.min_p > 0 else float("-inf")
    return {
        "top_p": parameters.top_p,
        "frequency_penalty": parameters.frequency_penalty,
        "presence_penalty": parameters.presence_penalty,
        "seed_low": parameters.seed & 0xFFFFFFFF,
        "seed_high": (parameters.seed >> 32) & 0xFFFFFFFF,
        "is_greedy": is_greedy(parameters),
        "temperature": parameters.temperature,
        "least": least,
        "top_k": min(max(parameters.top_k, 0), MAX_INT32),
        "repetition_penalty": parameters.repetition_penalty,
    }
