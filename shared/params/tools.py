"""Tools of a chat request (bad input 35): checked in full, then refused unless tool_choice is "none"."""

import re
from collections.abc import Mapping
from typing import Any

from shared.errors import invalid, unsupported
from shared.params.fields import wrong

MAX_TOOLS = 128
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHOICES = ("none", "auto", "required")


def validate_tools(params: Mapping[str, Any]) -> None:
    """Check tools and tool_choice, and refuse what would need a parser of tool calls."""
    tools = params.get("tools")
    choice = params.get("tool_choice")
    names = [] if tools is None else _names(tools)
    _check_choice(choice, names)
    if names and choice != "none":
        raise unsupported("tools", "Calling tools")


def _names(tools: Any) -> list[str]:
    if not isinstance(tools, list):
        raise wrong("tools", "an array", tools)
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools may have at most {MAX_TOOLS} items; got {len(tools)}.", "tools")
    return [_name(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _name(tool: Any, path: str) -> str:
    if not isinstance(tool, dict):
        raise wrong(path, "an object", tool)
    if tool.get("type") != "function":
        raise wrong(f"{path}.type", '"function"', tool.get("type"))
    function = tool.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{path}.function", "an object", function)
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise wrong(f"{path}.function.name", "1 to 64 letters, digits, _ or -", name)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(f"{path}.function.parameters", "a JSON schema object", parameters)
    return name


def _check_choice(choice: Any, names: list[str]) -> None:
    if choice is None or choice in ("none", "auto"):
        return
    if not names:
        raise invalid("tool_choice is only allowed with tools.", "tool_choice")
    if choice == "required":
        return
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        expected = f"one of {', '.join(CHOICES)} or an object naming a function"
        raise wrong("tool_choice", expected, choice)
    if name not in names:
        raise invalid("tool_choice names a tool that is not among tools.", "tool_choice")
