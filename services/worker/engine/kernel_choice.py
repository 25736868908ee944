"""Whether an engine computes in C++ or in torch, and in which dtype: settled before its weights are read."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from kernels.native.build import AroundBuild, BuildError
from kernels.native.library import Library, load_library
from services.worker.engine.options import EngineError, EngineOptions, resolve_dtype
from shared.repository.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """dtype: of weights and KV cache. library: the C++ kernels, None for torch. fallback_reason: why torch, if so."""

    dtype: torch.dtype
    library: Library | None
    fallback_reason: str | None


def choose_kernels(
    config: ModelConfig,
    options: EngineOptions,
    shape_problem: str | None,
    around_build: AroundBuild = nullcontext,
) -> KernelChoice:
    """C++ where it can be had for bfloat16, else torch.

    shape_problem: why the kernels cannot compute such a model, if they cannot. around_build: of the kernels, should
    they have to be built. Raises EngineError where torch will not do: a level asked for by name, or quantisation.
    """
    library, reason = None, _torch_is_asked_for(config, options) or shape_problem
    if reason is None:
        try:
            level = None if options.cpu_kernels in ("auto", "torch") else options.cpu_kernels
            library = load_library(level, around_build=around_build)
        except BuildError as error:
            reason = str(error)
    if reason is not None and options.cpu_kernels not in ("auto", "torch"):
        raise EngineError(f"cpu_kernels {options.cpu_kernels} cannot be used: {reason}")
    if reason is not None and options.quantization != "none":
        raise EngineError(f"quantization {options.quantization} needs the C++ kernels: {reason}")
    return KernelChoice(resolve_dtype(options.dtype, config, library is not None), library, reason)


def _torch_is_asked_for(config: ModelConfig, options: EngineOptions) -> str | None:
    """By which option, if so."""
    if options.cpu_kernels == "torch":
        return "cpu_kernels is torch"
    if options.dtype == "float32":
        return "dtype is float32"
    if options.dtype == "auto" and config.torch_dtype == "float32":
        return "dtype is auto, and the model's is float32"
    return None
