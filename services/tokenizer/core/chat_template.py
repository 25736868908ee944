"""Chat templates: Jinja in a sandbox, with the environment that Hugging Face's templates are written for."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import RequestError, invalid

_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
MAX_MESSAGE_CHARACTERS = 200


class TemplateSyntaxError(ValueError):
    """A chat template that is no Jinja; the model cannot serve chat."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  # the name and kind that Jinja asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A compiled template. special_tokens: bos_token, eos_token and the like, by name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateSyntaxError(str(error)) from error
        self._special_tokens = dict(special_tokens)
        self.knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. now: what strftime_now shows, fixed by the caller so that a retry renders the same.

        Raises RequestError where the template refuses the messages or fails on them.
        """
        variables: dict[str, Any] = {
            **self._special_tokens,
            **(extra or {}),
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": now.strftime,
        }
        try:
            return self._template.render(variables)
        except _RENDER_ERRORS as error:
            reason = str(error)[:MAX_MESSAGE_CHARACTERS] or type(error).__name__
            raise _refusal(reason) from error


def _refusal(reason: str) -> RequestError:
    return invalid(f"The model's chat template does not accept these messages: {reason}", "messages")


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: Jinja's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
