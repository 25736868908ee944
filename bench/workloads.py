"""The workloads that every figure of this project is about. Their seed is fixed, and so are their lengths.

| name | streams | requests | tokens in | tokens out |
|---|---|---|---|---|
| W1 | 1 | 5 | 128 | 128 |
| W2 | 16 | 64 | 32 to 512 | 128 |
| W3 | 16 | 48 | 512 shared by all, then 32 own | 64 |
| W4 | open loop | by rate and time | 128 | 64 |

The words of the prompts differ from one repeat to the next, so that no prefix cache of any server helps across repeats.
"""

import random

from bench.core.arrivals import arrival_times
from bench.core.plan import Plan, PlannedRequest
from bench.prompts import PromptMaker

SEED = 20240611
NAMES = ("W1", "W2", "W3")

W4_INPUT_TOKENS = 128
W4_OUTPUT_TOKENS = 64


def make(name: str, prompts: PromptMaker, repeat: int = 0) -> Plan:
    """W1, W2, W3 or `warm` (two streams, four short requests, not for measuring). Raises ValueError, PromptError."""
    lengths = random.Random(SEED)
    words = random.Random(f"{SEED} {name} {repeat}")
    if name == "warm":
        return Plan(name, [PlannedRequest(prompts.draw(words, 64), 16) for _ in range(4)], 2)
    if name == "W1":
        return Plan(name, [PlannedRequest(prompts.draw(words, 128), 128) for _ in range(5)], 1)
    if name == "W2":
        sizes = [lengths.randint(32, 512) for _ in range(64)]
        return Plan(name, [PlannedRequest(prompts.draw(words, size), 128) for size in sizes], 16)
    if name == "W3":
        shared = prompts.draw(words, 512).text
        return Plan(name, [PlannedRequest(prompts.draw(words, 544, shared), 64) for _ in range(48)], 16)
    raise ValueError(f"no workload {name!r}: one of {', '.join(NAMES)}")


def make_w4(rate: float, seconds: float, prompts: PromptMaker, burstiness: float = 1.0, repeat: int = 0) -> Plan:
    """Requests that come at this mean rate per second for so many seconds, whatever becomes of them."""
    draw = random.Random(f"{SEED} W4 {rate} {repeat}")
    times = arrival_times(max(2, round(rate * seconds)), rate, burstiness, draw)
    requests = [PlannedRequest(prompts.draw(draw, W4_INPUT_TOKENS), W4_OUTPUT_TOKENS, due_s) for due_s in times]
    return Plan(f"W4 at {rate:g}/s", requests)
