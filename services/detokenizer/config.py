"""Options of the detokenizer."""

from typing import Annotated

import msgspec

from shared.config import ServiceConfig


class DetokenizerConfig(ServiceConfig, kw_only=True, frozen=True):
    """Models are looked up as requests name them; model is only loaded early."""

    model: Annotated[str, msgspec.Meta(description="model whose tokenizer is loaded before the service is ready")] = (
        "smollm2-135m"
    )
    model_repository: Annotated[
        str, msgspec.Meta(description="folder of the model repository; none: $XDG_DATA_HOME/tokenbus/models")
    ] = ""
    test_drop_deltas: Annotated[
        float, msgspec.Meta(description="share of the delta batches that are not sent", ge=0.0, lt=1.0)
    ] = 0.0
    fencing: Annotated[
        bool, msgspec.Meta(description="count a worker's rows only under its own epoch; for tests: off breaks streams")
    ] = True
