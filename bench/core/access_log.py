"""What a gateway's access log tells of its load: when requests came and how long they were, never what they said."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

ASKING = ("/v1/completions", "/v1/chat/completions")


class TraceLine(msgspec.Struct, frozen=True):
    """timestamp: milliseconds since any moment. Lengths in tokens."""

    timestamp: float
    input_length: int
    output_length: int


class _LogLine(msgspec.Struct):
    event: str = ""
    path: str = ""
    status: int = 0
    timestamp: datetime | None = None
    duration_s: float = 0.0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None


_decode = msgspec.json.Decoder(_LogLine).decode


def trace_of(lines: Iterable[bytes]) -> tuple[list[TraceLine], int]:
    """The requests that were answered in full, by the time at which they came, in ms after the first; and how many
    others were left out: refused, failed, or from a gateway that logs no numbers of tokens.

    lines: of a gateway with --access-log and --log-format json, in any order and with anything else between them.
    """
    found, num_left_out = [], 0
    for line in lines:
        entry = _read(line)
        if entry is None or entry.event != "request" or entry.path not in ASKING:
            continue
        if entry.status != 200 or entry.timestamp is None or not (entry.num_prompt_tokens and entry.num_output_tokens):
            num_left_out += 1
            continue
        came_ms = 1e3 * (entry.timestamp.timestamp() - entry.duration_s)
        found.append(TraceLine(came_ms, entry.num_prompt_tokens, entry.num_output_tokens))
    found.sort(key=lambda line: line.timestamp)
    start = found[0].timestamp if found else 0.0
    moved = [TraceLine(round(each.timestamp - start, 1), each.input_length, each.output_length) for each in found]
    return moved, num_left_out


def _read(line: bytes) -> _LogLine | None:
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None
