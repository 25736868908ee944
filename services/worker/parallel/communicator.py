"""What the ranks of a group send each other, over torch.distributed: NCCL between CUDA devices, gloo on a CPU."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from services.worker.engine.isolation import EngineBroken

_MEETING = "meeting"
_LOOPBACK = "127.0.0.1"


class TorchCommunicator:
    """See services.worker.models.share.Communicator. There is one in a process at a time.

    The ranks are of one machine: they meet through a file and talk over its loopback interface, where no other machine
    can reach them.
    """

    def __init__(self, rank: int, size: int, folder: Path, device: torch.device) -> None:
        """Waits until all ranks are here. folder: that only this user may enter, the same for each of them.

        device: of the tensors. Raises EngineBroken.
        """
        self.rank = rank
        self.size = size
        self._device = device
        self._is_exact = device.type == "cpu"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, _loopback_interface())
        store = dist.FileStore(str(folder / _MEETING), size)  # type: ignore[attr-defined]  # it is documented
        with _explained():
            if self._is_exact:
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            else:
                dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)

    def add_up(self, x: Tensor) -> Tensor:
        """See Communicator. On a CPU in float32 whatever x is; NCCL adds in x's dtype."""
        if not x.numel():
            return x
        total = x.float() if self._is_exact else x
        with _explained():
            dist.all_reduce(total)
        return x if total is x else x.copy_(total)

    def gather(self, x: Tensor) -> Tensor:
        """See Communicator."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        if x.numel():
            with _explained():
                dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    def hand_out(self, x: Tensor) -> None:
        """See Communicator."""
        with _explained():
            dist.broadcast(x, src=0)

    def smallest(self, number: int) -> int:
        """See Communicator."""
        shared = torch.tensor([number], dtype=torch.int64, device=self._device)
        with _explained():
            dist.all_reduce(shared, op=dist.ReduceOp.MIN)
        return int(shared.item())

    def close(self) -> None:
        """Part from the others, which have ended; then this process may join another group.

        On devices the end of the process does that: NCCL may wait for all ranks where one of them wants to part.
        """
        if self._is_exact:
            dist.destroy_process_group()


@contextmanager
def _explained() -> Iterator[None]:
    """What goes wrong between ranks is never a sequence's fault."""
    try:
        yield
    except RuntimeError as error:
        raise EngineBroken(f"the ranks of this worker do not reach each other: {error}") from error


def _loopback_interface() -> str:
    """Its name: lo, lo0. Raises EngineBroken where there is none."""
    for name, held in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == _LOOPBACK for each in held):
            return name
    raise EngineBroken(f"the ranks of this worker do not reach each other: no network interface has {_LOOPBACK}")
