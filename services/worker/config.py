"""Options of the worker; those of engine and model have vLLM's names and meanings."""

from typing import Annotated, Literal

import msgspec

from shared.config import ServiceConfig

# A CPU computes 512 tokens in a tenth of a second, and whoever streams meanwhile waits for it.
BATCHED_TOKENS = {"cpu": 512, "cuda": 8192, "fake": 8192}


class WorkerConfig(ServiceConfig, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """See `tokenbus worker --help`."""

    engine: Annotated[
        Literal["cpu", "cuda", "fake"],
        msgspec.Meta(description="cpu and cuda run the model there, fake makes tokens up at a given pace"),
    ] = "cpu"
    model: Annotated[
        str, msgspec.Meta(description="name in the model repository; a known one is added if absent", min_length=1)
    ] = "smollm2-135m"
    model_version: Annotated[str, msgspec.Meta(description="its version; empty: the newest")] = ""
    model_repository: Annotated[
        str, msgspec.Meta(description="folder of the model repository; none: $XDG_DATA_HOME/tokenbus/models")
    ] = ""
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        msgspec.Meta(
            description="of weights and KV; auto: the model's own, but float32 if torch computes it without AVX-512"
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "gguf"],
        msgspec.Meta(
            description="cpu engine: int8 quantises weights and activations; gguf keeps the file's 4- and 8-bit blocks"
        ),
    ] = "none"
    max_model_len: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="longest sequence in tokens; none: the model's longest"),
    ] = None
    max_num_seqs: Annotated[int, msgspec.Meta(description="most sequences in one step", ge=1, le=65536)] = 64
    max_num_batched_tokens: Annotated[
        int,
        msgspec.Meta(description="most tokens in one step; 0: 512 with cpu, 8192 with cuda and fake", ge=0),
    ] = 0
    block_size: Annotated[int, msgspec.Meta(description="tokens in one KV block", ge=1, le=1024)] = 16
    gpu_memory_utilization: Annotated[
        float, msgspec.Meta(description="share of the device's memory to use, weights included", gt=0, le=1)
    ] = 0.9
    kv_cache_memory_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="bytes of KV memory, of each rank; none: from gpu_memory_utilization"),
    ] = None
    swap_space: Annotated[
        float,
        msgspec.Meta(
            description="GiB of host memory for the KV of preempted sequences, where that is faster than computing it; "
            "of the worker, whose ranks have equal parts",
            ge=0,
        ),
    ] = 0.0
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8"], msgspec.Meta(description="cuda engine: auto is the dtype of activations, fp8 is e4m3")
    ] = "auto"
    enforce_eager: Annotated[
        bool, msgspec.Meta(description="cuda engine: launch each kernel of a decode step, capture no CUDA graphs")
    ] = False
    tensor_parallel_size: Annotated[
        int,
        msgspec.Meta(
            description="devices that compute the model together, a process each, the first of those that "
            "CUDA_VISIBLE_DEVICES names; `tokenbus up` gives each worker its own; cpu engine: for tests",
            ge=1,
            le=64,
        ),
    ] = 1
    enable_prefix_caching: Annotated[bool, msgspec.Meta(description="reuse the KV of equal prefixes")] = True
    num_threads: Annotated[
        int, msgspec.Meta(description="cpu engine: threads of one step; 0: torch's own choice", ge=0)
    ] = 0
    cpu_kernels: Annotated[
        Literal["auto", "torch", "avx2", "avx512", "amx"],
        msgspec.Meta(
            description="cpu engine: instructions to compute with; auto: the best; all but torch need bfloat16"
        ),
    ] = "auto"
    engine_stuck_s: Annotated[
        float,
        msgspec.Meta(description="seconds for a fenced step to end; then the worker exits, to be started again", gt=0),
    ] = 10.0
    loop_stuck_s: Annotated[
        float,
        msgspec.Meta(description="seconds that the event loop may stand still (GIL held); then it exits; 0: any", ge=0),
    ] = 60.0
    fake_step_ms: Annotated[float, msgspec.Meta(description="fake engine: milliseconds of one step", ge=0)] = 5.0
    fake_mode: Annotated[
        Literal["pure", "chained"],
        msgspec.Meta(description="fake engine: tokens from seed and position, or from this process's own entropy"),
    ] = "pure"
    test_drop_frames: Annotated[
        float, msgspec.Meta(description="share of frames that are lost on their way to the log", ge=0, lt=1)
    ] = 0.0
    test_poison: Annotated[
        str, msgspec.Meta(description="text in a prompt that kills the worker when the step with it runs")
    ] = ""
    test_nan_share: Annotated[
        float, msgspec.Meta(description="share of rows whose logits are no finite numbers", ge=0, le=1)
    ] = 0.0
    test_oom_share: Annotated[float, msgspec.Meta(description="share of steps that find no memory", ge=0, le=1)] = 0.0
    test_hang_step: Annotated[
        int, msgspec.Meta(description="number of the step since start that hangs; 0: none", ge=0)
    ] = 0
    test_hang_s: Annotated[float, msgspec.Meta(description="seconds that it hangs; 0: for ever", ge=0, le=1e6)] = 6.0
    test_hang_kind: Annotated[
        Literal["sleep", "spin", "gil"],
        msgspec.Meta(description="it sleeps, spins in Python, or keeps the GIL so that all threads stop"),
    ] = "sleep"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens == 0:
            msgspec.structs.force_setattr(self, "max_num_batched_tokens", BATCHED_TOKENS[self.engine])
