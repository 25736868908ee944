"""From the options to an engine with its model."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kernels.native.build import AroundBuild
from services.worker.config import WorkerConfig
from services.worker.engine.fake import FakeEngine
from services.worker.engine.fake_vocabulary import ordinary_token_ids
from services.worker.engine.faults import Faults, with_faults
from services.worker.engine.interface import Engine, ModelEngine
from services.worker.engine.threads import sleep_while_waiting
from services.worker.parallel.orders import Join
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.service import StartError

if TYPE_CHECKING:
    from services.worker.models.share import Communicator

FAKE_KV_TOKENS = 1 << 20
GIB = 1 << 30


def load_engine(config: WorkerConfig, around_build: AroundBuild = nullcontext) -> Engine:
    """Blocks until the weights are in memory. Raises StartError with the reason an operator needs.

    around_build: of the C++ kernels, should they have to be built.
    """
    _check(config)
    repository = ModelRepository(Path(config.model_repository) if config.model_repository else None)
    try:
        version = config.model_version
        model = repository.open(config.model, version) if version else repository.ensure(config.model)
    except ModelError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError.of_path("--model-repository", repository.root, error) from error
    if config.engine == "fake":
        return with_switched_faults(load_fake_engine(model, config), model, config)
    if config.tensor_parallel_size > 1:
        return with_switched_faults(_load_group(model, config), model, config)
    return with_switched_faults(load_part(model, config, around_build=around_build), model, config)


def load_rank_engine(join: Join) -> ModelEngine:
    """The part of another rank of a group, in its own process. Raises StartError."""
    sleep_while_waiting()
    from services.worker.parallel.group import load_rank

    folder = join.config.model_repository
    try:
        model = ModelRepository(Path(folder) if folder else None).open(join.config.model, join.model_version)
    except ModelError as error:
        raise StartError(str(error)) from error
    return load_rank(model, join, load_part)


def _check(config: WorkerConfig) -> None:
    """Options that the engine does not know. Raises StartError."""
    if config.engine != "cuda" and config.kv_cache_dtype != "auto":
        raise StartError(f"kv_cache_dtype {config.kv_cache_dtype} is for engine cuda, not {config.engine}")
    if config.engine == "cuda" and config.quantization != "none":
        raise StartError(f"quantization {config.quantization} is for engine cpu, not cuda")
    if config.swap_space > 0 and not config.enable_prefix_caching:
        raise StartError(f"swap_space {config.swap_space:g} needs enable_prefix_caching: blocks are kept by content")
    if config.engine == "fake" and config.tensor_parallel_size > 1:
        raise StartError(f"tensor_parallel_size {config.tensor_parallel_size} is for engines cuda and cpu, not fake")


def with_switched_faults(engine: Engine, model: StoredModel, config: WorkerConfig) -> Engine:
    """The engine behind the faults of the test switches; the engine itself without any."""
    faults = Faults(
        poison=_poison(model, config.test_poison) if config.test_poison else (),
        nan_share=config.test_nan_share,
        oom_share=config.test_oom_share,
        hang_step=config.test_hang_step,
        hang_s=config.test_hang_s,
        hang_kind=config.test_hang_kind,
    )
    return with_faults(engine, faults)


def _poison(model: StoredModel, text: str) -> list[NDArray[np.int32]]:
    """The text's token ids; a word has other ids at the beginning of a text than after a blank."""
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    encodings = tokenizer.encode_batch([text, f" {text}"], add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]


def load_fake_engine(model: StoredModel, config: WorkerConfig) -> FakeEngine:
    """With the real model's vocabulary, and KV memory that takes no bytes: a million tokens, or as many as
    kv_cache_memory_bytes would hold of the real model's in bfloat16."""
    longest = model.config.max_position_embeddings
    max_model_len = longest if config.max_model_len is None else config.max_model_len
    if max_model_len > longest:
        raise StartError(f"max_model_len {max_model_len} is more than the model's longest context, {longest} tokens")
    num_blocks = FAKE_KV_TOKENS // config.block_size
    block_bytes = 4 * model.config.num_hidden_layers * model.config.kv_size * config.block_size
    if config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // block_bytes
    if num_blocks * config.block_size < max_model_len:
        raise StartError(
            f"max_model_len {max_model_len} does not fit {num_blocks} KV blocks of {config.block_size} tokens"
        )
    tokenizer: dict[str, Any] = msgspec.json.decode(model.tokenizer_file.read_bytes(), type=dict[str, Any])
    return FakeEngine(
        model=model.name,
        model_version=model.version,
        vocab_size=model.config.vocab_size,
        token_ids=ordinary_token_ids(tokenizer, model.config.vocab_size),
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=max_model_len,
        step_s=config.fake_step_ms / 1000,
        mode=config.fake_mode,
        num_swap_slots=int(config.swap_space * GIB) // block_bytes,
    )


def _load_group(model: StoredModel, config: WorkerConfig) -> Engine:
    """Rank 0's part, with the other ranks behind it."""
    sleep_while_waiting()
    from services.worker.engine.options import EngineError
    from services.worker.parallel.group import load_group

    try:
        return load_group(model, config, load_part)
    except (EngineError, ModelError) as error:
        raise StartError(str(error)) from error


def load_part(
    model: StoredModel,
    config: WorkerConfig,
    communicator: "Communicator | None" = None,
    around_build: AroundBuild = nullcontext,
) -> ModelEngine:
    """A model on a CPU or a CUDA device; of a group, the part of the communicator's rank. Raises StartError."""
    sleep_while_waiting()
    # Imported here because it imports torch, which a fake engine can do without: seconds and 200 MB.
    from services.worker.engine.cpu import CpuEngine
    from services.worker.engine.cuda import CudaEngine
    from services.worker.engine.options import EngineError
    from services.worker.models.parameters import WeightsError
    from services.worker.models.registry import UnknownArchitecture

    try:
        if config.engine == "cuda":
            return CudaEngine.load(model, config, communicator)
        engine = CpuEngine.load(model, config, around_build, communicator)
    except (EngineError, UnknownArchitecture, WeightsError, ModelError) as error:
        raise StartError(str(error)) from error
    if model.config.quantization is not None:
        layout, dtype = model.config.quantization.layout, str(engine.dtype).removeprefix("torch.")
        structlog.get_logger().info("quantised weights are dequantised on a CPU", layout=layout, dtype=dtype)
    return engine
