"""NVIDIA's compute-sanitizer over every operation at small shapes: memory, races in shared memory, barriers.

It looks at our kernels alone (their mangled names hold our namespace). Tensors lie in allocations of their own, without
torch's pool around them, so that a byte too far is outside.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu_check.findings import Findings
from bench.gpu_check.small_shapes import wrong_cases
from bench.gpu_check.where import Where

TOOLS = ("memcheck", "racecheck", "synccheck")
_LIMIT_S = 44.0  # of all tools together, below that of the part
_PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)")
_REFUSED = ("Device not supported", "Unable to find injection", "Failed to initialize")
_SHOWN = 8


def run(findings: Findings, where: Where) -> None:
    """In a dry run the program alone, in the emulator, and what would be run."""
    program = find_sanitizer()
    if where.is_dry:
        findings.note(f"Would run: {' '.join(command(program or 'compute-sanitizer', TOOLS[0]))}")
        wrong = wrong_cases(where)
        findings.check("every case runs at small shapes", not wrong, ", ".join(wrong))
        return
    if program is None:
        findings.skip("no compute-sanitizer on the PATH nor in /usr/local/cuda/bin")
        return
    end_s = time.monotonic() + _LIMIT_S
    for tool in TOOLS:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            findings.check(tool, False, "no time was left for it")
            continue
        findings.check(tool, *_result(program, tool, left_s))


def find_sanitizer() -> str | None:
    """The program, on the PATH or where CUDA is usually installed."""
    found = shutil.which("compute-sanitizer")
    return found or shutil.which("compute-sanitizer", path=os.pathsep.join(_PLACES))


def command(program: str, tool: str) -> list[str]:
    """One tool's."""
    options = ["--tool", tool, "--kernel-name", "kns=tokenbus", "--error-exitcode", "9", "--print-limit", "20"]
    return [program, *options, sys.executable, "-m", "bench.gpu_check.small_shapes"]


def _result(program: str, tool: str, limit_s: float) -> tuple[bool, str]:
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command(program, tool),
            cwd=Path(__file__).parents[2],
            env=environment,
            timeout=limit_s,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"had not ended after {limit_s:.0f} s"
    return judge(done.returncode, done.stdout)


def judge(status: int, output: str) -> tuple[bool, str]:
    """Whether all is well, by exit status and the tool's own summary, which must be there; and what it says."""
    summary = _SUMMARY.search(output)
    lines = [line for line in output.splitlines() if line.startswith("=========")] or output.splitlines()
    if status == 0 and summary is not None and summary[1] == "0":
        return True, summary[0]
    refused = next((line for line in lines if any(text in line for text in _REFUSED)), None)
    if refused is not None:
        return False, f"the tool does not work here: {refused}"
    return False, f"exit status {status}: " + " | ".join(lines[:_SHOWN])
