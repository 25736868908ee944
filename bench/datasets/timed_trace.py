"""Replay: requests that come when they once came and are as long as they once were, with other words.

A trace is a file of JSON lines in the format that Mooncake's published traces have and vLLM's `timed_trace` reads:
`{"timestamp": 27482, "input_length": 6955, "output_length": 52}`, milliseconds and tokens; other keys are ignored.
`tokenbus bench convert` makes one from a gateway's access log.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.core.access_log import TraceLine
from bench.core.plan import PlannedRequest
from bench.datasets.errors import DatasetError
from bench.prompts import PromptMaker


def read_trace(path: Path) -> list[TraceLine]:
    """Ordered by time. Raises DatasetError."""
    try:
        lines = msgspec.json.Decoder(TraceLine).decode_lines(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise DatasetError(f"{path} is no trace: {error}") from None
    if not lines:
        raise DatasetError(f"{path} is empty")
    return sorted(lines, key=lambda line: line.timestamp)


def trace_requests(
    lines: Sequence[TraceLine], num: int, speed: float, prompts: PromptMaker, seed: int
) -> list[PlannedRequest]:
    """The first num requests; the first one is due at once. speed: 2 replays twice as fast. Raises PromptError."""
    draw = random.Random(seed)
    start = lines[0].timestamp
    return [
        PlannedRequest(
            prompts.draw(draw, max(1, line.input_length)),
            max(1, line.output_length),
            (line.timestamp - start) / 1e3 / speed,
        )
        for line in lines[:num]
    ]


def write_trace(lines: Sequence[TraceLine], path: Path) -> None:
    """Raises OSError."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(lines))
