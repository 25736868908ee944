"""Options of the worker; those of engine and model have vLLM's names and meanings."""

from typing import Annotated, Literal

import msgspec

from shared.config import ServiceConfig


class WorkerConfig(ServiceConfig, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """See `tokenbus worker --help`."""

    engine: Annotated[
        Literal["cpu", "fake"], msgspec.Meta(description="cpu runs the model, fake makes tokens up at a given pace")
    ] = "cpu"
    model: Annotated[
        str, msgspec.Meta(description="name in the model repository; a known one is added if absent", min_length=1)
    ] = "smollm2-135m"
    model_version: Annotated[str, msgspec.Meta(description="its version; empty: the newest")] = ""
    model_repository: Annotated[
        str, msgspec.Meta(description="folder of the model repository; empty: the user's data folder")
    ] = ""
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"], msgspec.Meta(description="of weights and KV; auto: the model's own")
    ] = "auto"
    max_model_len: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="longest sequence in tokens; none: the model's longest"),
    ] = None
    max_num_seqs: Annotated[int, msgspec.Meta(description="most sequences in one step", ge=1, le=65536)] = 64
    max_num_batched_tokens: Annotated[int, msgspec.Meta(description="most tokens in one step", ge=1)] = 512
    block_size: Annotated[int, msgspec.Meta(description="tokens in one KV block", ge=1, le=1024)] = 16
    gpu_memory_utilization: Annotated[
        float, msgspec.Meta(description="share of the device's memory to use, weights included", gt=0, le=1)
    ] = 0.9
    kv_cache_memory_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="bytes of KV memory; none: from gpu_memory_utilization"),
    ] = None
    enable_prefix_caching: Annotated[bool, msgspec.Meta(description="reuse the KV of equal prefixes")] = True
    num_threads: Annotated[
        int, msgspec.Meta(description="cpu engine: threads of one step; 0: torch's own choice", ge=0)
    ] = 0
    fake_step_ms: Annotated[float, msgspec.Meta(description="fake engine: milliseconds of one step", ge=0)] = 5.0
    fake_mode: Annotated[
        Literal["pure", "chained"],
        msgspec.Meta(description="fake engine: tokens from seed and position, or from this process's own entropy"),
    ] = "pure"
    test_drop_frames: Annotated[
        float, msgspec.Meta(description="for tests: share of frames that are lost on their way to the log", ge=0, lt=1)
    ] = 0.0
    test_hang_step: Annotated[
        int, msgspec.Meta(description="for tests: number of the step since start that hangs; 0: none", ge=0)
    ] = 0
    test_hang_s: Annotated[float, msgspec.Meta(description="for tests: seconds that it hangs", ge=0)] = 6.0
