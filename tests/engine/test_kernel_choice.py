"""C++ or torch, bfloat16 or float32: what an engine takes on which processor, and what it says of it."""

import ctypes
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from kernels.native import library as native_library
from kernels.native.build import AroundBuild, BuildError
from kernels.native.library import Library
from services.worker.engine import kernel_choice
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.kernel_choice import KernelChoice, choose_kernels
from services.worker.engine.options import EngineError
from shared.repository.config import ModelConfig
from tests.engine.conftest import store_tiny_model
from tests.engine.options import Options

LIBRARY = Library("avx2", ctypes.CDLL(None))
AUTO = Options(dtype="auto")
HASWELL = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})


class Processor:
    """What torch and the kernels find; asked: for the level and around_build of each library that was wanted."""

    def __init__(self, torch_level: str, problem: str | None) -> None:
        self.torch_level = torch_level
        self.asked: list[tuple[str | None, AroundBuild]] = []
        self._problem = problem

    def load_library(self, level: str | None, around_build: AroundBuild) -> Library:
        self.asked.append((level, around_build))
        if self._problem is not None:
            raise BuildError(self._problem)
        return LIBRARY


def processor(monkeypatch: pytest.MonkeyPatch, torch_level: str, problem: str | None = None) -> Processor:
    """problem: why it has no kernels."""
    made = Processor(torch_level, problem)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: made.torch_level)
    monkeypatch.setattr(kernel_choice, "load_library", made.load_library)
    return made


def config(torch_dtype: str = "bfloat16") -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=384,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        torch_dtype=torch_dtype,
    )


@pytest.mark.parametrize("torch_level", ["AVX2", "AVX512"])
def test_auto_is_bfloat16_in_cpp_wherever_there_are_kernels(monkeypatch: pytest.MonkeyPatch, torch_level: str) -> None:
    asked = processor(monkeypatch, torch_level).asked
    assert choose_kernels(config(), AUTO, None, nullcontext) == KernelChoice(torch.bfloat16, LIBRARY, None)
    assert asked == [(None, nullcontext)]


@pytest.mark.parametrize(
    ("torch_level", "dtype"), [("DEFAULT", torch.float32), ("AVX2", torch.float32), ("AVX512", torch.bfloat16)]
)
def test_torch_computes_bfloat16_only_where_it_is_fast_at_it(
    monkeypatch: pytest.MonkeyPatch, torch_level: str, dtype: torch.dtype
) -> None:
    reason = "no C++ compiler: g++ is not on the PATH"
    processor(monkeypatch, torch_level, reason)
    assert choose_kernels(config(), AUTO, None) == KernelChoice(dtype, None, reason)
    asked = processor(monkeypatch, torch_level).asked
    reason = "head_dim 24 is not a multiple of 16"
    assert choose_kernels(config(), AUTO, reason) == KernelChoice(dtype, None, reason)
    by_option = choose_kernels(config(), Options(dtype="auto", cpu_kernels="torch"), None)
    assert by_option == KernelChoice(dtype, None, "cpu_kernels is torch")
    assert asked == []


def test_what_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = processor(monkeypatch, "AVX2").asked
    slow = choose_kernels(config(), Options(dtype="bfloat16", cpu_kernels="torch"), None)
    assert slow == KernelChoice(torch.bfloat16, None, "cpu_kernels is torch")
    exact = choose_kernels(config(), Options(dtype="float32"), None)
    assert exact == KernelChoice(torch.float32, None, "dtype is float32")
    assert asked == []
    narrowed = choose_kernels(config("float32"), Options(dtype="bfloat16"), None)
    assert narrowed == KernelChoice(torch.bfloat16, LIBRARY, None)
    by_name = choose_kernels(config(), Options(dtype="auto", cpu_kernels="avx2"), None)
    assert by_name == KernelChoice(torch.bfloat16, LIBRARY, None)
    assert [level for level, _ in asked] == [None, "avx2"]


def test_a_float32_model_stays_so_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "AVX512")
    choice = choose_kernels(config("float32"), AUTO, None)
    assert choice == KernelChoice(torch.float32, None, "dtype is auto, and the model's is float32")


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (Options(dtype="auto", cpu_kernels="amx"), "cpu_kernels amx cannot be used: the processor has no amx"),
        (Options(cpu_kernels="avx2", dtype="float32"), "cpu_kernels avx2 cannot be used: dtype is float32"),
        (
            Options(dtype="auto", quantization="int8"),
            r"quantization int8 needs the C\+\+ kernels: the processor has no amx",
        ),
        (Options(quantization="int8", cpu_kernels="torch"), r"needs the C\+\+ kernels: cpu_kernels is torch"),
        (Options(dtype="float16"), "dtype must be auto, bfloat16 or float32, not 'float16'"),
    ],
)
def test_where_torch_will_not_do_it_is_refused(monkeypatch: pytest.MonkeyPatch, options: Options, refusal: str) -> None:
    processor(monkeypatch, "AVX2", "the processor has no amx")
    with pytest.raises(EngineError, match=refusal):
        choose_kernels(config(), options, None)


def test_an_engine_on_a_processor_with_avx2_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path / "usual", "LlamaForCausalLM", torch.bfloat16)
    odd = store_tiny_model(tmp_path / "odd", "LlamaForCausalLM", torch.bfloat16, head_dim=24)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(native_library, "cpu_flags", lambda: HASWELL)
    native_library.load_library.cache_clear()
    try:
        engine = CpuEngine.load(model, Options(dtype="auto", kv_cache_memory_bytes=8 << 20))
        fallback = CpuEngine.load(odd, Options(dtype="auto", kv_cache_memory_bytes=8 << 20))
    finally:
        native_library.load_library.cache_clear()
    assert (engine.dtype, engine.kernels, engine.fallback_reason) == (torch.bfloat16, "avx2", None)
    assert engine.forward.kv_cache.dtype == torch.bfloat16
    assert (fallback.dtype, fallback.kernels) == (torch.float32, "torch: head_dim 24 is not a multiple of 16")
    assert fallback.forward.kv_cache.dtype == torch.float32
