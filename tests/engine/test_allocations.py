"""A decode step claims no memory: counted by a library that stands before the C library's allocator."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

COUNTER = """
#include <atomic>
#include <cstddef>
static std::atomic<long> count{0};
extern "C" {
long allocations() { return count.load(); }
extern void* __libc_malloc(size_t);
extern void* __libc_memalign(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_calloc(size_t, size_t);
void* malloc(size_t size) { count++; return __libc_malloc(size); }
void* realloc(void* memory, size_t size) { count++; return __libc_realloc(memory, size); }
void* calloc(size_t number, size_t size) { count++; return __libc_calloc(number, size); }
void* memalign(size_t alignment, size_t size) { count++; return __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { count++; return __libc_memalign(alignment, size); }
}
"""

COUNTED = """
import ctypes, json, sys
import numpy as np, torch
from pathlib import Path
from bench.engine_options import BenchEngineOptions, decode_batch
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.step_columns import StepColumns
from shared.repository.store import ModelRepository

allocations = ctypes.CDLL(None).allocations
allocations.restype = ctypes.c_long
model = ModelRepository(Path(sys.argv[1])).open("tiny")
found = {}
for quantization in ("none", "int8"):
    engine = CpuEngine.load(
        model,
        BenchEngineOptions(
            dtype="bfloat16", quantization=quantization, max_model_len=512, kv_cache_memory_bytes=16 << 20
        ),
    )
    for size in (1, 16, 64):
        batch = decode_batch(engine, size, 100)
        logits = torch.empty((1, engine.vocab_size))
        columns = StepColumns.of(batch, np.full(size, -1, dtype=np.int32), logits)
        native = engine.forward.model
        native.step(columns.struct)
        before = allocations()
        for _ in range(50):
            native.team
        calls = allocations() - before
        before = allocations()
        for _ in range(50):
            native.step(columns.struct)
        found[f"{quantization} {size}"] = allocations() - before - calls
print(json.dumps({"steps": found, "all": allocations()}))
"""


def test_decode_steps_allocate_nothing(tmp_path: Path) -> None:
    import torch

    from tests.engine.conftest import store_tiny_model

    compiler = shutil.which("g++")
    assert compiler is not None
    source, counter = tmp_path / "counter.cpp", tmp_path / "counter.so"
    source.write_text(COUNTER)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(counter)], check=True)
    store_tiny_model(tmp_path, "LlamaForCausalLM", torch.bfloat16)
    environment = os.environ | {"LD_PRELOAD": str(counter), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(tmp_path / "models")],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["all"] > 10_000  # the counter does stand before the allocator
    assert found["steps"] == {f"{kind} {size}": 0 for kind in ("none", "int8") for size in (1, 16, 64)}
