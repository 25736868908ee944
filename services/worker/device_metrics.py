"""Metrics of the device that a worker computes on, by NVML; absent where there is none."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

_PREFIX = "tokenbus_worker_gpu"


class OnDevice(Protocol):
    """What an engine on a CUDA device tells. device_uuid: e.g. GPU-5f0c...; memory_bytes: by what takes it: weights,
    kv_cache, activations, graphs."""

    device_uuid: str
    memory_bytes: Mapping[str, int]


class DeviceMetrics(Collector):
    """nvml: the module pynvml, initialised. What a device does not know is left out."""

    def __init__(self, nvml: Any, engine: OnDevice, registry: CollectorRegistry = REGISTRY) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(engine.device_uuid)
        self._engine = engine
        self._num_errors = 0
        self._throttling = {
            "power": nvml.nvmlClocksThrottleReasonSwPowerCap | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            "thermal": nvml.nvmlClocksThrottleReasonSwThermalSlowdown | nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
            "hardware": nvml.nvmlClocksThrottleReasonHwSlowdown,
        }
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        split = GaugeMetricFamily(f"{_PREFIX}_memory_split_bytes", "Memory that this worker takes.", labels=["part"])
        for part, num_bytes in self._engine.memory_bytes.items():
            split.add_metric([part], num_bytes)
        yield split
        for read in (self._utilization, self._memory, self._temperature, self._power, self._throttled, self._ecc):
            yield from self._read(read)
        yield CounterMetricFamily(
            f"{_PREFIX}_nvml_errors",
            "Readings that NVML failed to give, those that a device never has left out.",
            value=self._num_errors,
        )

    def _read(self, read: Callable[[], list[Metric]]) -> list[Metric]:
        try:
            return read()
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_NOT_SUPPORTED:
                self._num_errors += 1
            return []

    def _utilization(self) -> list[Metric]:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        return [
            GaugeMetricFamily(f"{_PREFIX}_utilization_ratio", "Share of time in which a kernel ran.", rates.gpu / 100),
            GaugeMetricFamily(
                f"{_PREFIX}_memory_utilization_ratio",
                "Share of time in which memory was read or written.",
                rates.memory / 100,
            ),
        ]

    def _memory(self) -> list[Metric]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return [
            GaugeMetricFamily(f"{_PREFIX}_memory_total_bytes", "Of the device.", memory.total),
            GaugeMetricFamily(f"{_PREFIX}_memory_used_bytes", "By all processes.", memory.used),
        ]

    def _temperature(self) -> list[Metric]:
        celsius = self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU)
        return [GaugeMetricFamily(f"{_PREFIX}_temperature_celsius", "Of the processor.", celsius)]

    def _power(self) -> list[Metric]:
        milliwatts = self._nvml.nvmlDeviceGetPowerUsage(self._handle)
        return [GaugeMetricFamily(f"{_PREFIX}_power_watts", "Of the board.", milliwatts / 1000)]

    def _throttled(self) -> list[Metric]:
        reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        family = GaugeMetricFamily(f"{_PREFIX}_throttled", "1 while clocks are held down.", labels=["reason"])
        for name, bits in self._throttling.items():
            family.add_metric([name], float(bool(reasons & bits)))
        return [family]

    def _ecc(self) -> list[Metric]:
        family = CounterMetricFamily(f"{_PREFIX}_ecc_errors", "Since the driver was loaded.", labels=["kind"])
        kinds = (
            ("corrected", self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )
        for name, kind in kinds:
            count = self._nvml.nvmlDeviceGetTotalEccErrors(self._handle, kind, self._nvml.NVML_VOLATILE_ECC)
            family.add_metric([name], count)
        return [family]


def measure_device(engine: object, registry: CollectorRegistry = REGISTRY) -> None:
    """Register metrics of the engine's device, if it has one. Raises NVMLError where the driver has no NVML."""
    if not hasattr(engine, "device_uuid"):
        return
    import pynvml

    pynvml.nvmlInit()
    DeviceMetrics(pynvml, engine, registry)  # type: ignore[arg-type]  # it says where it is, so it is on a device
