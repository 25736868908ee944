"""The bytes of a request, made before the clock starts."""

from typing import Any

import msgspec

from bench.client.target import KNOW_IGNORE_EOS, Target, TargetError
from bench.core.plan import PlannedRequest


def request_bytes(target: Target, request: PlannedRequest) -> bytes:
    """Head and body of one HTTP/1.1 request on a connection of its own. Raises TargetError."""
    body = msgspec.json.encode(request_body(target, request))
    host, port, _ = target.address
    headers = {
        "Host": f"{host}:{port}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **target.headers,
    }
    head = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def request_body(target: Target, request: PlannedRequest) -> dict[str, Any]:
    """OpenAI's fields, and those that make the answer as long as planned."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.temperature is not None:
        body["temperature"] = target.temperature
    if target.exact and target.backend in KNOW_IGNORE_EOS:
        body["ignore_eos"] = True
    elif target.exact:
        body["min_tokens"] = request.max_tokens
    if target.sends_token_ids:
        if not request.prompt.token_ids:
            raise TargetError("prompts without token ids: give --tokenizer, or --prompt-format text")
        body["prompt"] = list(request.prompt.token_ids)
    elif target.is_chat:
        body["messages"] = [{"role": "user", "content": request.prompt.text}]
    else:
        body["prompt"] = request.prompt.text
    return body | target.extra_body
