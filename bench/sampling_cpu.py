"""Sampling on the CPU, alone: microseconds of a row in C++ and in torch, and of the Python around a step.

python -m bench.sampling_cpu [--level avx2] [--cases temperature top_p ...] [--logits peaked flat] [--threads 1]
    [--no-torch] [--json FILE]

Logits: "peaked" as a language model's (some thirty likely tokens above a heap of unlikely ones), "flat" normally
distributed with deviation 1, where hundreds to thousands of tokens share the mass: the worst case of top_p.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.report.rows import save_rows
from kernels.native.build import BuildError
from kernels.native.isa import Level
from kernels.native.library import Library, load_library
from kernels.sampling import cpu
from kernels.sampling.native import sample_native
from kernels.sampling.native_rows import RowBatches
from kernels.sampling.rows import Sampled
from services.worker.engine.interface import RowSampling
from shared.messages.sampling import Sampling

VOCABULARY = 49_152
HISTORY, PROMPT = 600, 400
CASES = {
    "temperature": Sampling(max_tokens=1),
    "temperature_0.7": Sampling(max_tokens=1, temperature=0.7),
    "top_p_0.9": Sampling(max_tokens=1, top_p=0.9),
    "top_p_0.5": Sampling(max_tokens=1, top_p=0.5),
    "top_k_50": Sampling(max_tokens=1, top_k=50),
    "top_k_20_top_p_0.95": Sampling(max_tokens=1, top_k=20, top_p=0.95, temperature=0.6),
    "top_k_5000": Sampling(max_tokens=1, top_k=5000),
    "min_p_0.05": Sampling(max_tokens=1, min_p=0.05),
    "greedy_penalised": Sampling(max_tokens=1, temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5),
    "greedy_logprobs_5": Sampling(max_tokens=1, temperature=0.0, logprobs=5),
    "top_p_0.9_logprobs_20": Sampling(max_tokens=1, top_p=0.9, logprobs=20),
}


def peaked(generator: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    """Float32 [rows, vocabulary]."""
    logits = 2.5 * generator.standard_normal((num_rows, VOCABULARY))
    for row in logits:
        row[generator.integers(0, VOCABULARY, 30)] = 11 + 4 * generator.standard_normal(30)
    return logits.astype(np.float32)


def flat(generator: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    """Float32 [rows, vocabulary]."""
    return generator.standard_normal((num_rows, VOCABULARY)).astype(np.float32)


LOGITS = {"peaked": peaked, "flat": flat}
Sample = Callable[[Tensor, list[RowSampling], NDArray[np.int32]], Sampled]


def make_rows(sampling: Sampling, num_rows: int, generator: np.random.Generator) -> list[RowSampling]:
    """Rows of one kind, each with its own seed."""
    history = generator.integers(0, VOCABULARY, HISTORY).astype(np.int32) if sampling.has_penalties else None
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return [RowSampling(Sampling(**fields | {"seed": 1000 + index}), PROMPT, history) for index in range(num_rows)]


class NativeSampler:
    """The library with a team of threads."""

    def __init__(self, library: Library, num_threads: int) -> None:
        self._functions = library.functions
        self._team = self._functions.tokenbus_team_new(num_threads)
        self._batches = RowBatches(VOCABULARY)

    def sample(self, logits: Tensor, rows: list[RowSampling], positions: NDArray[np.int32]) -> Sampled:
        """See kernels.sampling.cpu.sample."""
        return sample_native(self._team, self._functions, logits, self._batches.of(rows, positions))

    def close(self) -> None:
        """Ends the threads."""
        self._functions.tokenbus_team_delete(self._team)


def time_rows(sample: Sample, logits: NDArray[np.float32], rows: list[RowSampling]) -> tuple[float, float]:
    """Microseconds of a row: median and least of steps, each with fresh logits, which lie in no cache beforehand."""
    positions = np.full(len(rows), HISTORY - PROMPT, dtype=np.int32)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < 0.5 and len(times) < 200):
        copy = torch.from_numpy(logits.copy())
        begun = time.perf_counter()
        result = sample(copy, rows, positions)
        times.append(time.perf_counter() - begun)
        if result.errors:
            raise RuntimeError(f"rows failed: {result.errors}")
    return 1e6 * statistics.median(times[1:]) / len(rows), 1e6 * min(times[1:]) / len(rows)


class _NoLibrary(ctypes.CDLL):
    """Does nothing, so that what is left is Python."""

    def __init__(self) -> None:
        pass

    def tokenbus_sample(self, *arguments: object) -> None:
        """No work."""


def time_python(num_rows: int, is_same: bool) -> float:
    """Microseconds of the Python around a step of drawn rows, whose list is the one of the step before or a new one."""
    rows = make_rows(CASES["top_p_0.9"], num_rows, np.random.default_rng(0))
    batches, library, logits = RowBatches(VOCABULARY), _NoLibrary(), torch.zeros(num_rows, VOCABULARY)
    positions = np.zeros(num_rows, dtype=np.int32)
    times: list[float] = []
    for _ in range(500):
        step = rows if is_same else list(rows)
        begun = time.perf_counter()
        batch = batches.of(step, positions)
        sample_native(0, library, logits, batch, batch.needs_logits())
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=get_args(Level), help="of instructions; the highest one by default")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--logits", nargs="*", default=list(LOGITS), choices=LOGITS)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-torch", action="store_true", help="C++ alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        library = load_library(options.level)
    except BuildError as error:
        parser.error(str(error))
    native = NativeSampler(library, options.threads)
    results: list[dict[str, object]] = []
    for kind in options.logits:
        logits = LOGITS[kind](np.random.default_rng(1), options.rows)
        for name in options.cases:
            rows = make_rows(CASES[name], options.rows, np.random.default_rng(2))
            result: dict[str, object] = {"logits": kind, "case": name}
            ways: list[tuple[str, Sample, int]] = [("native", native.sample, options.rows)]
            if not options.no_torch:
                ways.append(("torch", cpu.sample, min(options.rows, 16)))
            for way, sample, num_rows in ways:
                median, least = time_rows(sample, logits[:num_rows], rows[:num_rows])
                result |= {f"{way}_us": round(median, 1), f"{way}_least_us": round(least, 1)}
            results.append(result)
            print(json.dumps(result), flush=True)
    native.close()
    python = {name: round(time_python(options.rows, same), 1) for name, same in (("same", True), ("new", False))}
    print(json.dumps({"python_us_of_a_step": python}))
    if options.json:
        settings = {
            "level": library.level,
            "threads": options.threads,
            "rows_of_a_step": options.rows,
            "vocabulary": VOCABULARY,
            "python_us_of_a_step": python,
        }
        save_rows(options.json, "sampling_cpu", results, settings)


if __name__ == "__main__":
    main()
