"""A GGUF file's own blocks in the engine: the same model as dequantised, up to the rounding of its inputs."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from kernels.linear.packing_blocks import Q4, Q8
from kernels.native.isa import Level, cpu_flags, levels_of
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.options import EngineError
from services.worker.engine.quantization import packer_for
from services.worker.models.layers import Linear
from shared.repository.gguf_source import inspect_gguf
from shared.repository.raw_blocks import iter_raw_blocks
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder
from tests.repository.gguf_files import write_gguf
from tests.tiny_models import make_tiny_model

LEVELS = levels_of(cpu_flags())
KV_BYTES = 8 << 20
PROMPT = list(range(3, 60))
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def stored(folder: Path, kind: str, architecture: str = "llama", others: dict[str, str] | None = None) -> StoredModel:
    """A tiny GGUF model with matrices of this type. others: another type by part of a matrix's name."""
    source = make_tiny_model(
        folder / "source", ARCHITECTURES[architecture], hidden_size=256, intermediate_size=256, initializer_range=0.08
    )
    types = {part: GGMLQuantizationType[name] for part, name in (others or {}).items()}
    write_gguf(source, folder / "tiny.gguf", architecture, GGMLQuantizationType[kind], other_types=types)
    return ModelRepository(folder / "models").add(inspect_gguf(folder / "tiny.gguf"), "tiny")


def quantised(level: Level = LEVELS[-1]) -> Options:
    return Options(dtype="bfloat16", cpu_kernels=level, quantization="gguf", kv_cache_memory_bytes=KV_BYTES)


def prompt_logits(model: StoredModel, options: Options) -> torch.Tensor:
    """Logits after the prompt and two more tokens, float32 [3, vocabulary]."""
    recorder = LogitsRecorder(CpuEngine.load(model, options))
    generate(recorder, [PROMPT], greedy(3))
    return torch.cat(recorder.logits)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_files_own_blocks_are_the_dequantised_model(
    tmp_path: Path, architecture: str, kind: str, level: Level
) -> None:
    model = stored(tmp_path, kind, architecture)
    exact = prompt_logits(model, Options(kv_cache_memory_bytes=KV_BYTES))[0]
    found = prompt_logits(model, quantised(level))[0]
    assert (found - exact).norm() < 0.06 * exact.norm()


def test_matrices_keep_their_own_encodings(tmp_path: Path) -> None:
    """As in a Q4_K_M file: where fused tensors do not go together, or a type is not among ours, it is bfloat16."""
    model = stored(tmp_path, "Q4_K", others={"v_proj": "Q6_K", "down_proj": "Q5_K", "embed": "Q8_0", "o_proj": "Q4_0"})
    packer = packer_for(model, quantised())
    assert packer is not None
    config = model.config
    inner, hidden = config.intermediate_size, config.hidden_size
    layer = "model.layers.1."
    heads = [f"{layer}self_attn.{part}_proj.weight" for part in "qkv"]
    encodings = {
        name: packer.pack(Linear(torch.zeros(rows, hidden), names=tuple(names))).encoding
        for name, rows, names in (
            ("qkv", config.q_size + 2 * config.kv_size, heads),
            ("q and k", config.q_size + config.kv_size, heads[:2]),
            ("output", hidden, [f"{layer}self_attn.o_proj.weight"]),
            ("gate and up", 2 * inner, [f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up")]),
            ("down", hidden, [f"{layer}mlp.down_proj.weight"]),
        )
    }
    assert encodings == {"qkv": 0, "q and k": Q4, "output": Q4, "gate and up": Q4, "down": 0}
    embedding = Linear(torch.zeros(config.vocab_size, hidden), names=("model.embed_tokens.weight",))
    assert packer.pack_head(embedding).encoding == Q8
    exact = prompt_logits(model, Options(kv_cache_memory_bytes=KV_BYTES))[0]
    assert (prompt_logits(model, quantised())[0] - exact).norm() < 0.06 * exact.norm()


def test_a_file_without_such_blocks_is_bfloat16(tmp_path: Path) -> None:
    model = stored(tmp_path, "Q5_0")
    plain = Options(dtype="bfloat16", cpu_kernels=LEVELS[-1], kv_cache_memory_bytes=KV_BYTES)
    assert torch.equal(prompt_logits(model, quantised()), prompt_logits(model, plain))


def test_blocks_come_in_the_order_of_the_tensors(tmp_path: Path) -> None:
    model = stored(tmp_path, "Q4_1", others={"o_proj": "F16"})
    names = [name for name, _, _ in iter_raw_blocks(model)]
    matrices = [name for name, shape in model.config.parameter_shapes().items() if len(shape) == 2]
    assert sorted(names) == sorted(name for name in matrices if "o_proj" not in name)
    assert len(names) == len(set(names))


def test_other_files_are_refused_by_the_options_name(tiny_model: StoredModel) -> None:
    with pytest.raises(EngineError, match="quantization gguf needs a GGUF file; the weights of tiny are safetensors"):
        CpuEngine.load(tiny_model, quantised())
