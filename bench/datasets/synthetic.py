"""Made-up prompts: of random words, or with beginnings that several requests share."""

import random

from bench.core.plan import PlannedRequest
from bench.prompts import PromptMaker


def random_requests(
    num: int, input_len: int, output_len: int, range_ratio: float, prefix_len: int, prompts: PromptMaker, seed: int
) -> list[PlannedRequest]:
    """vLLM's `random`: prefix_len tokens shared by all, then input_len own ones, output_len out.

    Both lengths are drawn evenly from [len * (1 - range_ratio), len * (1 + range_ratio)]. Raises PromptError.
    """
    draw = random.Random(seed)
    prefix = prompts.draw(draw, prefix_len).text if prefix_len else ""
    requests = []
    for _ in range(num):
        num_in, num_out = _around(input_len, range_ratio, draw), _around(output_len, range_ratio, draw)
        requests.append(PlannedRequest(prompts.draw(draw, prefix_len + num_in, prefix), num_out))
    return requests


def prefix_requests(
    num: int, prefix_len: int, suffix_len: int, num_prefixes: int, output_len: int, prompts: PromptMaker, seed: int
) -> list[PlannedRequest]:
    """vLLM's `prefix_repetition`: num_prefixes beginnings, used in turn and then shuffled. Raises PromptError."""
    draw = random.Random(seed)
    prefixes = [prompts.draw(draw, prefix_len).text for _ in range(num_prefixes)]
    requests = [
        PlannedRequest(prompts.draw(draw, prefix_len + suffix_len, prefixes[index % num_prefixes]), output_len)
        for index in range(num)
    ]
    draw.shuffle(requests)
    return requests


def _around(length: int, ratio: float, draw: random.Random) -> int:
    return max(1, draw.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))
