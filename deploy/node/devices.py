"""Which CUDA devices each worker of a node sees: in CUDA_VISIBLE_DEVICES, as whoever starts a worker alone says it."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from deploy.node import count_devices
from deploy.node.checks import NotPossible
from deploy.node.config import NodeConfig, service_config, service_values
from shared.config import build

VISIBLE = "CUDA_VISIBLE_DEVICES"
COUNT_TIMEOUT_S = 60.0  # a driver that wakes eight devices takes some seconds


def worker_environments(
    config: NodeConfig,
    given: dict[str, Any],
    environment: Mapping[str, str] = os.environ,
    count: Callable[[], int] | None = None,
) -> list[dict[str, str]]:
    """What each worker of the node finds in its environment beside the node's own.

    given: options for services. count: of the machine's devices, asked only where the environment does not list them.
    Raises NotPossible with the numbers where there are too few, ConfigError.
    """
    worker = msgspec.structs.asdict(build(service_config("worker"), service_values("worker", config, given)))
    if worker["engine"] != "cuda" or not config.workers:
        return [{}] * config.workers
    listed = environment.get(VISIBLE)
    devices = _in_order((count or ask_driver)()) if listed is None else listed_devices(listed)
    size: int = worker["tensor_parallel_size"]
    source = "" if listed is None else f" in {VISIBLE}={listed}"
    return [{VISIBLE: ",".join(part)} for part in deal(devices, config.workers, size, source)]


def deal(devices: Sequence[str], num_workers: int, size: int, source: str = "") -> list[Sequence[str]]:
    """Each worker's devices, `size` of them, none of which another one has.

    Only workers of one device each may share, evenly, where there are fewer than workers. source: where devices are
    from, for the message. Raises NotPossible with the numbers.
    """
    if size == 1 and devices:
        return [[devices[index % len(devices)]] for index in range(num_workers)]
    wanted = num_workers * size
    if len(devices) < wanted:
        needed = f"{wanted} CUDA devices" if size > 1 else "a CUDA device"
        raise NotPossible(
            f"--workers {num_workers} with --tensor-parallel-size {size} need {needed}; there are "
            f"{len(devices)}{source}"
        )
    return [devices[index * size : (index + 1) * size] for index in range(num_workers)]


def listed_devices(listed: str) -> list[str]:
    """The names in CUDA_VISIBLE_DEVICES, numbers or UUIDs. CUDA itself stops at the first one that names nothing."""
    names: list[str] = []
    for name in (part.strip() for part in listed.split(",")):
        if not name or name.startswith("-"):
            break
        names.append(name)
    return names


def ask_driver() -> int:
    """The machine's devices; 0 where there is no driver, or none that answers."""
    command = [sys.executable, "-I", "-S", count_devices.__file__]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COUNT_TIMEOUT_S, check=True)
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return 0


def _in_order(count: int) -> list[str]:
    return [str(number) for number in range(count)]
