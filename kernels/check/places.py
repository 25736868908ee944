"""Where kernels run: a device, or the emulator that the tests bring along."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.check.case import Size
from kernels.cuda.module import LoadKernels

EMULATOR = "tests.kernels.emulator.module:load_emulated"


class NoPlace(RuntimeError):
    """Kernels can run nowhere here; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """arch: the device's architecture, None for none. size: of the cases that run here in a short time."""

    name: str
    load: LoadKernels
    device: torch.device
    size: Size
    arch: str | None


def current_device() -> Place | None:
    """None where there is no device. Raises NoPlace where it cannot be used."""
    if not torch.cuda.is_available():
        return None
    try:
        from kernels.cuda.device_module import DeviceLoader, current_arch
    except ImportError as error:
        raise NoPlace(f"a CUDA device, but no CuPy: {error}; install tokenbus[cuda]") from error
    device = torch.device("cuda", torch.cuda.current_device())
    return Place(torch.cuda.get_device_name(device), DeviceLoader(), device, Size.FULL, current_arch())


def emulator(loader: str = EMULATOR) -> Place:
    """loader: MODULE:NAME of what makes a LoadKernels. By name: kernels do not know the tests. Raises NoPlace."""
    module, _, name = loader.partition(":")
    try:
        make: Callable[[], LoadKernels] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise NoPlace(
            f"no emulator: {loader}: {error}; it comes with the source's tests, not with a package"
        ) from error
    return Place("the emulator", make(), torch.device("cpu"), Size.SMALL, None)
