"""From a .cu file to a cubin, by NVRTC: neither a driver nor a device is needed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cupy.cuda import nvrtc

from kernels.cuda.headers import include_folders
from kernels.cuda.sources import ROOT

_ENTRY = re.compile(r"Compiling entry function '(\S+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class CompilationFailed(RuntimeError):
    """NVRTC refused; the message is its log."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas reports of a kernel and of what it calls: registers of a thread, bytes of its local memory (stack) and
    of registers spilled to it; static shared memory of a block in bytes."""

    registers: int
    stack: int
    spilled: int
    shared: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin. symbols: mangled names by instance; resources: by instance."""

    cubin: bytes
    symbols: dict[str, str]
    resources: dict[str, Resources]


def version() -> tuple[int, int]:
    """NVRTC's, major and minor."""
    major, minor = nvrtc.getVersion()
    return int(major), int(minor)


def options(arch: str, includes: Sequence[Path] | None = None) -> list[str]:
    """arch: e.g. sm_90, or sm_90a. includes: by default ours and CUDA's."""
    folders = [ROOT, *include_folders()] if includes is None else includes
    return [
        "-std=c++17",
        f"-arch={arch}",
        "--ptxas-options=-v",
        "-default-device",
        *(f"-I{folder}" for folder in folders),
    ]


def compile_kernels(source: Path, instances: Sequence[str], arch: str) -> Compiled:
    """instances: C++ names of kernels with their template arguments. Raises CompilationFailed."""
    program = nvrtc.createProgram(source.read_text(encoding="utf-8"), source.name, (), ())
    try:
        for instance in instances:
            nvrtc.addNameExpression(program, instance)
        try:
            nvrtc.compileProgram(program, tuple(options(arch)))
        except nvrtc.NVRTCError as error:
            raise CompilationFailed(f"{source.name} for {arch}: {nvrtc.getProgramLog(program)}") from error
        symbols = {instance: str(nvrtc.getLoweredName(program, instance)) for instance in instances}
        cubin = bytes(nvrtc.getCUBIN(program)) + b"\0"  # whose last byte CuPy takes for a string's end
        reports = parse_log(str(nvrtc.getProgramLog(program)))
        return Compiled(cubin, symbols, {instance: reports[symbol] for instance, symbol in symbols.items()})
    finally:
        nvrtc.destroyProgram(program)


def parse_log(log: str) -> dict[str, Resources]:
    """ptxas's report by mangled name.

    Functions that are not inlined are reported after the first kernel that calls them, and count as its.
    """
    parts = _ENTRY.split(log)[1:]
    return {symbol: _parse_report(report) for symbol, report in zip(parts[::2], parts[1::2], strict=True)}


def _parse_report(report: str) -> Resources:
    frames, used, shared = _FRAME.findall(report), _USED.search(report), _SHARED.search(report)
    if not frames or used is None:
        raise CompilationFailed(f"ptxas reported nothing that can be read: {report}")
    return Resources(
        registers=int(used[1]),
        stack=sum(int(stack) for stack, _, _ in frames),
        spilled=sum(int(stores) + int(loads) for _, stores, loads in frames),
        shared=int(shared[1]) if shared is not None else 0,
    )
