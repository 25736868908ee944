"""Which file runs which architecture, by the class name in a model's config.json."""

from collections.abc import Callable

from services.worker.models import llama, mistral, qwen2, qwen3
from services.worker.models.decoder import Decoder
from services.worker.models.parameters import Parameters
from shared.repository.config import ModelConfig

Build = Callable[[ModelConfig, Parameters], Decoder]

_BUILDERS: dict[str, Build] = {
    "LlamaForCausalLM": llama.build,
    "MistralForCausalLM": mistral.build,
    "Qwen2ForCausalLM": qwen2.build,
    "Qwen3ForCausalLM": qwen3.build,
}


class UnknownArchitecture(Exception):
    """No file runs this architecture; the message lists those that one does."""


def builder_of(architecture: str) -> Build:
    """The function that builds such a model. Raises UnknownArchitecture."""
    if architecture not in _BUILDERS:
        known = ", ".join(sorted(_BUILDERS))
        raise UnknownArchitecture(f"unknown architecture {architecture!r}; known architectures: {known}")
    return _BUILDERS[architecture]
