"""How many frames a node's worker has sent."""

import re

from bench.errors import BenchError
from bench.node import Node
from bench.worker_metrics import worker_metrics


def frames_sent(node: Node) -> int:
    """By the node's first worker since it began: one frame for each engine step. Raises BenchError."""
    try:
        sample = re.search(r"^tokenbus_worker_frames_total ([0-9.e+]+)$", worker_metrics(node), re.MULTILINE)
    except (LookupError, OSError) as error:
        raise BenchError(f"the node's worker tells no metrics: {error}") from None
    if sample is None:
        raise BenchError("the node's worker counts no frames")
    return int(float(sample[1]))
