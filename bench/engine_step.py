"""One step of the CPU engine against its own matrix products and attention, each measured alone.

python -m bench.engine_step [--quantization none int8 gguf] [--batch 1 16 64] [--context-len 256] [--json FILE]

The parts run over the same weights with the same threads, in turn with the whole step; the ratio of the medians says
what everything else of a step costs: norms, RoPE, the KV cache, sampling, Python.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.engine_options import BenchEngineOptions, decode_batch
from bench.report.rows import save_rows
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import StepInput
from services.worker.engine.native_forward import NativeForward
from services.worker.engine.step_columns import StepColumns
from shared.repository.store import ModelRepository

ROUNDS = 5
CALLS = 8


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", nargs="+", default=["none"], choices=["none", "int8", "gguf"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--context-len", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for quantization in options.quantization:
        engine = _load(options.model, quantization, max(options.batch))
        for batch_size in options.batch:
            row = measure(engine, quantization, decode_batch(engine, batch_size, options.context_len))
            print(json.dumps(row), flush=True)
            rows.append(row)
        del engine
    if options.json:
        save_rows(options.json, "engine_step", rows, {"context_len": options.context_len})


def _load(model: str, quantization: str, max_num_seqs: int) -> CpuEngine:
    wanted = BenchEngineOptions(dtype="bfloat16", quantization=quantization, max_num_seqs=max_num_seqs)  # type: ignore[arg-type]  # argparse has checked it
    return CpuEngine.load(ModelRepository().ensure(model), wanted)


def measure(engine: CpuEngine, quantization: str, batch: StepInput) -> dict[str, Any]:
    """Milliseconds of a decode step and of its parts."""
    forward = engine.forward
    if not isinstance(forward, NativeForward):
        raise SystemExit(f"the engine computes with torch: {engine.fallback_reason}")
    size = len(batch.sampled)
    logits = torch.empty((1, engine.vocab_size))
    columns = StepColumns.of(batch, np.full(size, -1, dtype=np.int32), logits)
    output = torch.empty((size, engine.vocab_size + 32), dtype=torch.bfloat16)
    parts: dict[str, Callable[[], object]] = {
        "step": lambda: engine.step(batch),
        "products": lambda: forward.model.products(size, output),
        "attention": lambda: forward.model.attention(columns.struct),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ROUNDS):
        for name, call in parts.items():
            call()
            for _ in range(CALLS):
                begun_s = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - begun_s))
    median = {name: statistics.median(values) for name, values in times.items()}
    floor = median["products"] + median["attention"]
    return {
        "quantization": quantization,
        "kernels": forward.kernels,
        "batch": size,
        **{f"{name}_ms": round(value, 3) for name, value in median.items()},
        "tokens_per_s": round(1e3 * size / median["step"], 1),
        "ratio": round(median["step"] / floor, 3),
        "best_ms": {name: round(min(values), 3) for name, values in times.items()},
    }


if __name__ == "__main__":
    main()
