"""Metrics of a device, as NVML's functions tell them; there is no device here, so NVML is a table of answers."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from services.worker.device_metrics import DeviceMetrics, measure_device

ENGINE = SimpleNamespace(device_uuid="GPU-1", memory_bytes={"weights": 10, "kv_cache": 20})
NOT_SUPPORTED, UNKNOWN = 3, 999


class NvmlError(Exception):
    """As pynvml's, by its number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def nvml(**failing: int) -> Any:
    """The module; failing: functions by what they raise."""
    answers: dict[str, object] = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=40),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1000, used=600),
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetPowerUsage": 350_500,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0b0100,
        "nvmlDeviceGetTotalEccErrors": 2,
    }

    def answer(name: str) -> Any:
        def call(handle: str, *_: object) -> object:
            assert handle == "handle of GPU-1"
            if name in failing:
                raise NvmlError(failing[name])
            return answers[name]

        return call

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_ERROR_NOT_SUPPORTED=NOT_SUPPORTED,
        NVML_TEMPERATURE_GPU=0,
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlClocksThrottleReasonSwPowerCap=0b0100,
        nvmlClocksThrottleReasonHwPowerBrakeSlowdown=0b1000_0000,
        nvmlClocksThrottleReasonSwThermalSlowdown=0b0010_0000,
        nvmlClocksThrottleReasonHwThermalSlowdown=0b0100_0000,
        nvmlClocksThrottleReasonHwSlowdown=0b1000,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        **{name: answer(name) for name in answers},
    )


def scrape(module: Any) -> dict[str, float]:
    registry = CollectorRegistry()
    DeviceMetrics(module, ENGINE, registry)
    return {
        sample.name.removeprefix("tokenbus_worker_gpu_") + "".join(f" {value}" for value in sample.labels.values()): (
            sample.value
        )
        for family in registry.collect()
        for sample in family.samples
    }


def test_all_that_a_device_knows() -> None:
    assert scrape(nvml()) == {
        "memory_split_bytes weights": 10,
        "memory_split_bytes kv_cache": 20,
        "utilization_ratio": 0.75,
        "memory_utilization_ratio": 0.4,
        "memory_total_bytes": 1000,
        "memory_used_bytes": 600,
        "temperature_celsius": 61,
        "power_watts": 350.5,
        "throttled power": 1,
        "throttled thermal": 0,
        "throttled hardware": 0,
        "ecc_errors_total corrected": 2,
        "ecc_errors_total uncorrected": 2,
        "nvml_errors_total": 0,
    }


@pytest.mark.parametrize(("error", "counted"), [(NOT_SUPPORTED, 0), (UNKNOWN, 1)])
def test_what_a_device_does_not_tell_is_left_out(error: int, counted: int) -> None:
    found = scrape(nvml(nvmlDeviceGetPowerUsage=error))
    assert "power_watts" not in found
    assert found["temperature_celsius"] == 61
    assert found["nvml_errors_total"] == counted


def test_pynvml_has_all_that_is_read() -> None:
    import pynvml

    names = [name for name in vars(nvml()) if not name.startswith("__")]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_an_engine_without_a_device_has_no_such_metrics() -> None:
    registry = CollectorRegistry()
    measure_device(SimpleNamespace(device="cpu"), registry)
    assert list(registry.collect()) == []
