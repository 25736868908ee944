"""What can be known of the launch on a device without one: CuPy and torch's streams are stand-ins here."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cuda import device_module
from kernels.cuda.arguments import as_number
from kernels.cuda.compiler import Compiled, Resources
from kernels.cuda.cubin_cache import CubinCache
from kernels.cuda.device_module import DeviceLoader, DeviceModule, current_arch

INSTANCE = "tokenbus::copy<float>"
STATIC_BYTES = 1024


# ---- arguments ------------------------------------------------------------------------------------------------------


def test_a_tensor_goes_as_its_address_and_none_as_null() -> None:
    tensor = torch.arange(8)
    for argument, address in ((tensor, tensor.data_ptr()), (tensor[3:], tensor.data_ptr() + 24), (None, 0)):
        number = as_number(argument)
        assert number == address
        assert number.dtype == np.uint64


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float16, np.bool_, np.int8])
def test_a_numpy_number_goes_as_it_is(kind: type[np.generic]) -> None:
    number = kind(1)  # type: ignore[call-arg]
    assert as_number(number) is number


@pytest.mark.parametrize(
    "argument",
    [
        1,
        1.0,
        True,
        "1",
        b"1",
        [1],
        np.array([1]),
        np.str_("1"),
        np.complex64(1),
        np.datetime64(1, "s"),
        np.longdouble(1),
    ],
    ids=lambda argument: type(argument).__name__,
)
def test_what_has_no_width_of_ours_is_refused(argument: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(argument).__name__}"):
        as_number(argument)


# ---- launches -------------------------------------------------------------------------------------------------------


@dataclass
class Device:
    """launches: (grid, block, arguments, shared bytes, stream); allowed: dynamic shared memory asked for."""

    launches: list[tuple[Any, ...]] = field(default_factory=list)
    allowed: list[int] = field(default_factory=list)
    stream: int = 100


class KernelOfDevice:
    ptr = 4711

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_bytes: int, stream: Any) -> None:
        self._device.launches.append((grid, block, arguments, shared_bytes, stream.ptr))


class CacheOfOne(CubinCache):
    def get(self, source: Path, instances: Any, arch: str) -> Compiled:
        assert arch == "sm_90"
        return Compiled(b"cubin", {INSTANCE: "_Zcopy"}, {INSTANCE: Resources(32, 0, 0, STATIC_BYTES)})


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    class ModuleOfDevice:
        def load(self, cubin: bytes) -> None:
            assert cubin == b"cubin"

        def get_function(self, symbol: str) -> KernelOfDevice:
            assert symbol == "_Zcopy"
            return KernelOfDevice(device)

    def allow(kernel: int, attribute: int, value: int) -> None:
        assert (kernel, attribute) == (KernelOfDevice.ptr, 8)
        device.allowed.append(value)

    monkeypatch.setattr(device_module.function, "Module", ModuleOfDevice)
    monkeypatch.setattr(device_module, "driver", SimpleNamespace(funcSetAttribute=allow))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=device.stream))
    return device


@pytest.fixture
def module(device: Device) -> DeviceModule:
    loaded = DeviceLoader(CacheOfOne(Path("unused")))(Path("kernel.cu"), [INSTANCE])
    assert isinstance(loaded, DeviceModule)
    return loaded


def test_the_architecture_is_the_devices(device: Device) -> None:
    assert current_arch() == "sm_90"


def test_numbers_grid_and_block_reach_the_kernel(module: DeviceModule, device: Device) -> None:
    module.launch(INSTANCE, (2, 3, 4), (128, 1, 1), [None, np.int32(7), np.float32(0.5)], 512)
    assert device.launches == [((2, 3, 4), (128, 1, 1), (0, 7, 0.5), 512, 100)]
    assert [number.dtype for number in device.launches[0][2]] == [np.uint64, np.int32, np.float32]


def test_the_stream_is_read_at_every_launch(module: DeviceModule, device: Device) -> None:
    for device.stream in (1, 2):
        module.launch(INSTANCE, (1, 1, 1), (1, 1, 1), [])
    assert [launch[4] for launch in device.launches] == [1, 2]


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_grid_of_no_blocks_is_refused(grid: tuple[int, int, int], module: DeviceModule, device: Device) -> None:
    with pytest.raises(ValueError, match="a grid of"):
        module.launch(INSTANCE, grid, (1, 1, 1), [])
    assert not device.launches


def test_an_argument_of_no_known_width_is_refused(module: DeviceModule, device: Device) -> None:
    with pytest.raises(TypeError, match="not float"):
        module.launch(INSTANCE, (1, 1, 1), (1, 1, 1), [1.0])  # type: ignore[list-item]
    assert not device.launches


def test_a_tensor_that_the_device_cannot_reach_is_refused(module: DeviceModule, device: Device) -> None:
    with pytest.raises(ValueError, match=r"cannot reach a tensor \(2, 3\)"):
        module.launch(INSTANCE, (1, 1, 1), (1, 1, 1), [torch.zeros(2, 3)])
    assert not device.launches


def test_more_shared_memory_than_48_kib_is_asked_for_once_static_and_dynamic_together(
    module: DeviceModule, device: Device
) -> None:
    for shared_bytes in (0, (48 << 10) - STATIC_BYTES, (48 << 10) - STATIC_BYTES + 16, 48 << 10, 64 << 10, 64 << 10):
        module.launch(INSTANCE, (1, 1, 1), (1, 1, 1), [], shared_bytes)
    assert device.allowed == [(48 << 10) - STATIC_BYTES + 16, 48 << 10, 64 << 10]
