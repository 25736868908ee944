"""One streamed chat completion over HTTP with the standard library, for `tokenbus ask --url` and the demo."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from deploy.cli.errors import one_line

TIMEOUT_S = 600.0


class AnswerFailed(RuntimeError):
    """The server refused or broke off; the message is its own."""


def stream_answer(base_url: str, body: dict[str, Any], on_text: Callable[[str], None]) -> int:
    """Ask base_url (with or without /v1) and call on_text with each piece; the number of output tokens.

    body: an OpenAI chat completion without stream options; without "model" the first one served. Blocks.
    Raises AnswerFailed.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    try:
        body = {"model": body.get("model") or _first_model(root), **body}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(
            f"{root}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return _read(_events(answer), on_text)
    except urllib.error.HTTPError as error:
        with error:
            raise AnswerFailed(_error_message(error.read(), f"HTTP status {error.code}")) from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise AnswerFailed(f"{root}: {one_line(reason) if isinstance(reason, Exception) else reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AnswerFailed(f"{root}: {error or type(error).__name__}") from None


def _first_model(root: str) -> str:
    with urllib.request.urlopen(f"{root}/v1/models", timeout=TIMEOUT_S) as answer:
        models = json.load(answer)["data"]
    if not models:
        raise AnswerFailed(f"{root} serves no model")
    return str(models[0]["id"])


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream; AnswerFailed when it ends without its last event."""
    for line in answer:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise AnswerFailed("the stream broke off")


def _read(events: Iterator[dict[str, Any]], on_text: Callable[[str], None]) -> int:
    num_tokens = 0
    for event in events:
        if "error" in event:
            raise AnswerFailed(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            text = (choice.get("delta") or {}).get("content")
            if text:
                on_text(text)
        usage = event.get("usage")
        if usage:
            num_tokens = usage["completion_tokens"]
    return num_tokens


def _error_message(body: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return otherwise
