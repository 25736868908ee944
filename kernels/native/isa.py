"""Which instruction level this processor has.

A level is what a whole build of the library may use. Levels are ordered: a processor that has one has all below it.
"""

from pathlib import Path
from typing import Literal

Level = Literal["avx2", "avx512", "amx"]

_FLAGS: dict[Level, frozenset[str]] = {
    "avx2": frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"}),
    "avx512": frozenset(
        {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni", "avx512vbmi"}
    ),
    "amx": frozenset({"amx_tile", "amx_bf16", "amx_int8"}),
}

_AVX512 = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi")

COMPILER_FLAGS: dict[Level, tuple[str, ...]] = {
    "avx2": ("-march=x86-64-v3",),
    "avx512": _AVX512,
    "amx": (*_AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}


def levels_of(cpu_flags: frozenset[str]) -> list[Level]:
    """Levels of a processor with these flags (as in /proc/cpuinfo), the lowest first."""
    levels: list[Level] = []
    for level, needed in _FLAGS.items():
        if not needed <= cpu_flags:
            break
        levels.append(level)
    return levels


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first processor; none where the system does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
