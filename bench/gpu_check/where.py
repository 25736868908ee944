"""Where a part runs: the device, or the emulator of the tests in its place.

python -m bench.gpu_check.where prints what describes the device, as JSON.
"""

from dataclasses import dataclass

import msgspec
import torch

from kernels.check.places import NoPlace, Place, current_device, emulator
from kernels.cuda.module import LoadKernels

BLOCKS_PER_PROCESSOR = 2  # of threads, as the engine reckons
_EMULATED_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class Where:
    """is_dry: in the emulator, at small shapes, without times."""

    place: Place
    is_dry: bool

    @classmethod
    def find(cls, is_dry: bool) -> "Where":
        """Raises NoPlace where there is no device and it is no dry run."""
        if is_dry:
            return cls(emulator(), True)
        place = current_device()
        if place is None:
            raise NoPlace("no CUDA device here; --dry-run does what needs none")
        return cls(place, False)

    @property
    def device(self) -> torch.device:
        """For tensors."""
        return self.place.device

    @property
    def load(self) -> LoadKernels:
        """For launchers."""
        return self.place.load

    @property
    def num_parallel(self) -> int:
        """Blocks of threads that run at a time."""
        if self.is_dry:
            return _EMULATED_PARALLEL
        return BLOCKS_PER_PROCESSOR * int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def wait(self) -> None:
        """Until the device has done everything; what went wrong there is raised here."""
        if not self.is_dry:
            torch.cuda.synchronize()


def describe_device() -> dict[str, str]:
    """Of the current device and what drives it; empty without one."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),
        "memory": f"{properties.total_memory / 1e9:.1f} GB",
        "L2 cache": f"{properties.L2_cache_size / 1e6:.0f} MB",
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
    }


if __name__ == "__main__":
    print(msgspec.json.encode(describe_device()).decode())
