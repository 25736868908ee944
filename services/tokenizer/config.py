"""Options of the tokenizer; those of the model have vLLM's names and meanings."""

from typing import Annotated

import msgspec

from shared.queue_options import QueueOptions


class TokenizerConfig(QueueOptions, kw_only=True, frozen=True):
    """See `tokenbus tokenizer --help`."""

    model: Annotated[
        str, msgspec.Meta(description="name in the model repository; a known one is added if absent", min_length=1)
    ] = "smollm2-135m"
    model_version: Annotated[str, msgspec.Meta(description="its version; empty: the newest")] = ""
    model_repository: Annotated[
        str, msgspec.Meta(description="folder of the model repository; none: $XDG_DATA_HOME/tokenbus/models")
    ] = ""
    served_model_name: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1)], ...],
        msgspec.Meta(description="names under which clients ask for it, the first in every answer; none: as model"),
    ] = ()
    max_model_len: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="longest sequence in tokens; none: the model's longest"),
    ] = None
    max_concurrent_requests: Annotated[
        int, msgspec.Meta(description="requests in this process at once beyond which requests get 503", ge=1)
    ] = 4096
    num_encoding_threads: Annotated[int, msgspec.Meta(description="threads that encode long prompts", ge=1, le=256)] = 2
    inline_bytes: Annotated[
        int, msgspec.Meta(description="requests up to this size are encoded on the event loop itself", ge=0)
    ] = 2048
    leader_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds without scheduler or worker after which requests get 503", gt=0)
    ] = 5.0
