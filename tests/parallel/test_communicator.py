"""What ranks talk over, where no other rank is needed to tell."""

from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from services.worker.engine.isolation import EngineBroken
from services.worker.parallel.communicator import TorchCommunicator

NCCL_WAITS = "NCCL waits for the others"


def test_a_machine_without_a_loopback_interface_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", dict)
    with pytest.raises(EngineBroken, match=r"no network interface has 127\.0\.0\.1"):
        TorchCommunicator(0, 1, tmp_path, torch.device("cpu"))


@pytest.mark.parametrize(("device", "parts"), [("cpu", True), ("cuda", False)])
def test_devices_part_with_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, parts: bool
) -> None:
    parted: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: parted.append(NCCL_WAITS))
    TorchCommunicator(0, 1, tmp_path, torch.device(device, 0)).close()
    assert bool(parted) == parts
