"""From the options to a group: what is refused, and how rank 0 and the others come to their engines."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch

from services.worker.config import WorkerConfig
from services.worker.engine.interface import ModelEngine, PipelinedEngine
from services.worker.engine.isolation import EngineBroken
from services.worker.engine.options import EngineError
from services.worker.models.shards import check_sizes
from services.worker.models.share import Communicator
from services.worker.parallel.communicator import TorchCommunicator
from services.worker.parallel.group_engine import GroupEngine, PipelinedGroupEngine
from services.worker.parallel.orders import Join
from services.worker.parallel.ranks import OnDeath, Ranks, end_process
from shared.repository.config import ModelConfig
from shared.repository.stored_model import StoredModel

LoadPart = Callable[[StoredModel, WorkerConfig, Communicator], ModelEngine]


def load_group(
    model: StoredModel, config: WorkerConfig, load_part: LoadPart, on_death: OnDeath = end_process
) -> GroupEngine:
    """Starts the other ranks, then loads rank 0's part; each loads its own at the same time.

    Raises EngineError where the model cannot be cut so, or there are too few devices.
    """
    size = config.tensor_parallel_size
    check(model.config, config, torch.cuda.device_count())
    model.verify_weights()  # once, and remembered: the others find them verified
    config = msgspec.structs.replace(config, num_threads=config.num_threads or max(1, torch.get_num_threads() // size))
    with ExitStack() as stack:
        # Kept as long as the group: NCCL looks into the file where the ranks met from time to time.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tokenbus-ranks-")))
        # Parted from once they have ended: a rank that waits for this one would take a lost connection for a failure.
        connections = stack.enter_context(ExitStack())
        ranks = Ranks([Join(rank, size, str(folder), model.version, config) for rank in range(1, size)], on_death)
        stack.callback(ranks.close)
        try:
            communicator = TorchCommunicator(0, size, folder, _device_of(config, 0))
            connections.callback(communicator.close)
            engine = load_part(model, config, communicator)
        except EngineBroken:
            ranks.wait_for_death()
            raise
        close = stack.pop_all().close
        if isinstance(engine, PipelinedEngine):
            return PipelinedGroupEngine(engine, ranks, close)
        return GroupEngine(engine, ranks, close)


def load_rank(model: StoredModel, join: Join, load_part: LoadPart) -> ModelEngine:
    """The part of another rank, in its own process. Raises what load_part raises."""
    communicator = TorchCommunicator(join.rank, join.size, Path(join.folder), _device_of(join.config, join.rank))
    return load_part(model, join.config, communicator)


def check(model: ModelConfig, config: WorkerConfig, num_devices: int) -> None:
    """Raises EngineError with the reason why there can be no such group."""
    size = config.tensor_parallel_size
    if config.engine == "cuda" and num_devices < size:
        raise EngineError(
            f"tensor_parallel_size {size} needs as many CUDA devices; there are {num_devices}, see CUDA_VISIBLE_DEVICES"
        )
    check_sizes(model, size)


def _device_of(config: WorkerConfig, rank: int) -> torch.device:
    """Each rank has the device of its number among those that CUDA_VISIBLE_DEVICES leaves to the worker."""
    if config.engine != "cuda":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
