"""Rows of the attention tables."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu_check.attention_inputs import Row
from bench.gpu_check.findings import Cell, Findings
from bench.gpu_check.timing import capture_if_possible
from bench.gpu_check.where import Where
from kernels.check.run import DeviceClock

OURS = "tokenbus"
ALLOWED = 1e-2  # of the norm, between two ways of computing the same in bfloat16
DECODE_TABLE = "Decode: one query a sequence"
PREFILL_TABLE = "Prompts"


class Clock:
    """Seconds of a launch, None in a dry run. copy_gb_per_s: of the device's memory."""

    def __init__(self, where: Where) -> None:
        self._clock = None if where.is_dry else DeviceClock(where.device)
        self.copy_gb_per_s = None if self._clock is None else self._clock.copy_gb_per_s()

    def __call__(self, launch: Callable[[], object]) -> float | None:
        """Launches at least once."""
        launch()
        if self._clock is None:
            return None
        replay = capture_if_possible(launch)

        def run() -> None:
            replay()

        return self._clock(run)


def add_decode(findings: Findings, clock: Clock, row: Row, who: str, seconds: float | None) -> None:
    """A row; only ours has goals."""
    rate = None if seconds is None else row.cache_bytes / seconds / 1e9
    share = None if rate is None or clock.copy_gb_per_s is None else rate / clock.copy_gb_per_s
    findings.row(
        DECODE_TABLE,
        row=row.name,
        who=who,
        us=_rounded(seconds, 1e6),
        **{
            "GB/s": None if rate is None else round(rate),
            "of a copy": None if share is None else round(share, 3),
            **(verdict(share, row.goal, row.stretch) if who == OURS and row.goal else {}),
        },
    )


def add_prefill(findings: Findings, clock: Clock, row: Row, who: str, seconds: float | None) -> None:
    """A row."""
    rate = None if seconds is None else row.flops / seconds / 1e12
    findings.row(
        PREFILL_TABLE,
        row=row.name,
        who=who,
        us=_rounded(seconds, 1e6),
        **{
            "TFLOP/s": None if rate is None else round(rate, 1),
            **(verdict(rate, row.goal, row.stretch) if who == OURS else {}),
        },
    )


Add = Callable[[Findings, Clock, Row, str, float | None], None]
Peer = Callable[[], Tensor]


def add_peer(
    findings: Findings,
    clock: Clock,
    row: Row,
    who: str,
    make: Callable[[], Peer],
    add: Add,
    expected: Tensor | None = None,
) -> float | None:
    """A peer's row, and its seconds; one that cannot do it says why instead. expected: what it should compute."""
    try:
        peer = make()
        off = 0.0 if expected is None else difference(peer(), expected)
        seconds = clock(peer)
    except Exception as error:  # of libraries and compilers, of any kind
        findings.note(f"{who}, {row.name}: {str(error).strip().splitlines()[0]}")
        return None
    if off > ALLOWED:
        findings.note(f"{who}, {row.name}: its result is off by {off:.1e} of the norm.")
    add(findings, clock, row, who, seconds)
    return seconds


def verdict(value: float | None, goal: float, stretch: float) -> dict[str, Cell]:
    """goal, stretch (0: there is none), and whether the value reaches them."""
    if value is None:
        reached: Cell = None
    elif stretch and value >= stretch:
        reached = "stretch met"
    else:
        reached = "met" if value >= goal else "missed"
    return {"goal": goal, "stretch": stretch or None, "reached": reached}


def difference(found: Tensor, expected: Tensor) -> float:
    """Of the norm; infinite if something is no number."""
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    return float(torch.nan_to_num(error, nan=float("inf")))


def _rounded(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else round(seconds * factor, 1)
