"""Where the load goes, and what the server there understands beyond OpenAI's API."""

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from bench.errors import BenchError

Backend = Literal["tokenbus", "vllm", "llama.cpp", "openai", "openai-chat"]
PromptFormat = Literal["auto", "token-ids", "text"]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
KNOW_IGNORE_EOS = ("tokenbus", "vllm", "llama.cpp")
TAKE_TOKEN_IDS = ("tokenbus", "vllm", "llama.cpp")


class TargetError(BenchError):
    """A server that cannot be asked like this; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """base_url: `http://host:port`, a path in front of the endpoint is allowed. endpoint: "" for the backend's own.

    prompt_format "auto" sends token ids where the backend takes them, so that no server pays for encoding what another
    does not. exact: ask for exactly as many tokens as planned: ignore_eos where the backend has it, else min_tokens.
    extra_body: fields for every request, over all others. headers: e.g. Authorization.
    """

    base_url: str
    model: str
    backend: Backend = "tokenbus"
    endpoint: str = ""
    prompt_format: PromptFormat = "auto"
    exact: bool = True
    temperature: float | None = 0.0
    extra_body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(f"{self.base_url!r} is no URL such as http://127.0.0.1:8000")
        if self.sends_token_ids and self.is_chat:
            raise TargetError("a chat takes no token ids: --prompt-format text, or --endpoint /v1/completions")

    @property
    def path(self) -> str:
        """Of the request line; a base URL that ends in /v1 is taken as that of the whole server."""
        prefix = urlsplit(self.base_url).path.rstrip("/")
        endpoint = self.endpoint or (CHAT if self.backend == "openai-chat" else COMPLETIONS)
        if prefix.endswith("/v1") and endpoint.startswith("/v1/"):
            prefix = prefix.removesuffix("/v1")
        return prefix + endpoint

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("chat/completions")

    @property
    def sends_token_ids(self) -> bool:
        if self.prompt_format == "auto":
            return self.backend in TAKE_TOKEN_IDS and not self.is_chat
        return self.prompt_format == "token-ids"

    @property
    def address(self) -> tuple[str, int, bool]:
        """Host, port, and whether it is TLS."""
        parts = urlsplit(self.base_url)
        is_tls = parts.scheme == "https"
        return parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls
