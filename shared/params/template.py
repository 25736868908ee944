"""Arguments that a client may hand to a chat template (bad input 39)."""

from typing import Any

import msgspec

from shared.errors import invalid
from shared.params.fields import wrong

MAX_KWARGS_BYTES = 16384

RESERVED = frozenset(
    {"add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "conversation", "documents"}
    | {"eos_token", "messages", "pad_token", "raise_exception", "request", "return_dict", "self", "strftime_now"}
    | {"tokenize", "tokenizer", "tools", "unk_token"}
)


def validate_chat_template_kwargs(value: Any) -> dict[str, Any]:
    """Plain JSON values by name; names that the server itself gives to templates are refused."""
    param = "chat_template_kwargs"
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(param, "an object", value)
    for name in value:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise invalid(f"{param} must not set {str(name)[:40]!a}.", param)
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        raise invalid(f"{param} must hold plain JSON values.", param) from None
    if size > MAX_KWARGS_BYTES:
        raise invalid(f"{param} may have at most {MAX_KWARGS_BYTES} bytes as JSON; got {size}.", param)
    return value
