"""Groups of CPU ranks, the first in the test's own process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from services.worker.config import WorkerConfig
from services.worker.loading import load_part
from services.worker.parallel.group import LoadPart, load_group
from services.worker.parallel.group_engine import GroupEngine
from services.worker.parallel.ranks import OnDeath
from shared.repository.stored_model import StoredModel

KV_CACHE_BYTES = 8 << 20


def no_death(rank: int, status: int) -> None:
    raise AssertionError(f"rank {rank} has ended with status {status}")


@contextmanager
def running_group(
    stored: StoredModel,
    size: int,
    on_death: OnDeath = no_death,
    load_rank_0: LoadPart = load_part,
    **options: Any,
) -> Iterator[GroupEngine]:
    """The model on so many ranks with a thread each; they have ended after it."""
    config = WorkerConfig(
        **{"dtype": "float32", "kv_cache_memory_bytes": KV_CACHE_BYTES} | options,
        model=stored.name,
        model_repository=str(stored.path.parents[1]),
        num_threads=1,
        tensor_parallel_size=size,
    )
    num_threads = torch.get_num_threads()
    try:
        engine = load_group(stored, config, load_rank_0, on_death)
        try:
            yield engine
        finally:
            engine.close()
    finally:
        torch.set_num_threads(num_threads)
