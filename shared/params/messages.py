"""Messages of a chat request (bad inputs 14 to 17): checked, and brought into the one form that templates read."""

from typing import Any

import msgspec

from shared.errors import RequestError, invalid
from shared.params.fields import check_text, shown, wrong

MAX_MESSAGES = 4096
MAX_NAME_CHARACTERS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS = frozenset({"audio_url", "file", "image_embeds", "image_url", "input_audio", "input_image", "video_url"})
PART_SEPARATOR = "\n"


def validate_messages(value: Any) -> list[dict[str, Any]]:
    """Messages with role, content (always a text) and, where given, name, tool_calls and tool_call_id.

    Text parts are joined with a newline, the arguments of tool calls become objects, unknown keys are dropped.
    Raises RequestError with the path of what is wrong, such as `messages[0].role`. Nothing is ever fetched.
    """
    if value is None:
        raise invalid("messages is required.", "messages")
    if not isinstance(value, list):
        raise wrong("messages", "an array", value)
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid(f"messages must have 1 to {MAX_MESSAGES} items; got {len(value)}.", "messages")
    known_calls: set[str] = set()
    return [_message(message, f"messages[{index}]", known_calls) for index, message in enumerate(value)]


def _message(message: Any, path: str, known_calls: set[str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong(path, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{path}.role", f"one of {', '.join(ROLES)}", role)
    checked: dict[str, Any] = {"role": role, "content": _content(message, role, path)}
    name = message.get("name")
    if name is not None:
        checked["name"] = _short_text(name, f"{path}.name")
    if role == "assistant" and message.get("tool_calls"):
        checked["tool_calls"] = _tool_calls(message["tool_calls"], f"{path}.tool_calls", known_calls)
    if role == "tool":
        checked["tool_call_id"] = _tool_call_id(message.get("tool_call_id"), f"{path}.tool_call_id", known_calls)
    return checked


def _content(message: dict[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    if content is None and role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
        refusal = message.get("refusal")
        return check_text(refusal, f"{path}.refusal") if isinstance(refusal, str) else ""
    if isinstance(content, str):
        return check_text(content, f"{path}.content")
    if not isinstance(content, list):
        raise wrong(f"{path}.content", "a string or an array of text parts", content)
    if not content:
        raise invalid(f"{path}.content must not be an empty array.", f"{path}.content")
    return PART_SEPARATOR.join(_part(part, f"{path}.content[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return check_text(part, path)
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise wrong(path, "a text part", part)
    if kind in MEDIA_PARTS:
        raise invalid(f"{path}: this model reads text only; a part of type {kind} is not accepted.", path)
    if kind not in TEXT_PARTS:
        raise invalid(f"{path}.type is unknown: {shown(kind)}.", f"{path}.type")
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise wrong(f"{path}.{TEXT_PARTS[kind]}", "a string", text)
    return check_text(text, f"{path}.{TEXT_PARTS[kind]}")


def _short_text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARACTERS:
        raise wrong(path, f"a string of 1 to {MAX_NAME_CHARACTERS} characters", value)
    return check_text(value, path)


def _tool_calls(value: Any, path: str, known_calls: set[str]) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise wrong(path, "an array", value)
    calls = []
    for index, call in enumerate(value):
        checked = _tool_call(call, f"{path}[{index}]")
        known_calls.add(checked["id"])
        calls.append(checked)
    return calls


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise wrong(path, "an object", call)
    if call.get("type", "function") != "function":
        raise wrong(f"{path}.type", '"function"', call.get("type"))
    call_id = _short_text(call.get("id"), f"{path}.id")
    function = call.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{path}.function", "an object", function)
    name = _short_text(function.get("name"), f"{path}.function.name")
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(value: Any, path: str) -> dict[str, Any]:
    """Templates want an object; OpenAI sends it as a text of JSON."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(check_text(value, path))
        except (msgspec.MsgspecError, RecursionError):
            raise _not_an_object(path) from None
    if not isinstance(value, dict):
        raise _not_an_object(path)
    return value


def _not_an_object(path: str) -> RequestError:
    return invalid(f"{path} must be an object, or a JSON text of one.", path)


def _tool_call_id(value: Any, path: str, known_calls: set[str]) -> str:
    call_id = _short_text(value, path)
    if call_id not in known_calls:
        raise invalid(f"{path} answers no tool call of an earlier assistant message.", path)
    return call_id
