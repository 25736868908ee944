"""Chat templates render as Hugging Face's do, in a sandbox, and fail as bad requests."""

from datetime import UTC, datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from services.tokenizer.core.chat_template import ChatTemplate, TemplateSyntaxError
from shared.errors import RequestError

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "数 é \n two lines"},
    {"role": "assistant", "content": "ok"},
]


def render(source: str, messages: list[dict[str, Any]] = MESSAGES, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, now=NOW, **options)


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}",
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n U:{{ m.content }}\n  {% endif %}\n{% endfor %}\nend",
        "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
        "{% if tools %}tools{% endif %}{% if add_generation_prompt %}A:{% endif %}{{ undefined_thing }}",
        "{{ messages[0].content.strip().split(' ')[0] ~ messages[1]['content'][:3] }}",
    ],
)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_hugging_face_does(source: str, add_generation_prompt: bool) -> None:
    theirs, _ = render_jinja_template(
        [MESSAGES],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert render(source, add_generation_prompt=add_generation_prompt) == theirs[0]


def test_time_is_an_argument() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "04 Mar 2026"


def test_arguments_reach_the_template_but_not_over_its_own() -> None:
    source = "{{ enable_thinking }}{{ messages | length }}"
    assert render(source, extra={"enable_thinking": False, "messages": []}) == "False3"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[99].content.x }}",
        "{{ 'a' + 5 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(5) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert len(caught.value.message) < 400


def test_the_templates_own_reason_reaches_the_client() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_broken_template_is_found_when_loaded() -> None:
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate("{% for %}", {})
