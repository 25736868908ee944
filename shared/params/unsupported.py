"""Parameters that are known but demand what this server cannot do (bad inputs 36 to 39): refused, never ignored."""

from collections.abc import Mapping
from typing import Any

from shared.errors import invalid, unsupported
from shared.params.fields import wrong

# name -> (values that demand nothing, what would be demanded). None always demands nothing.
DEMANDS: dict[str, tuple[tuple[object, ...], str]] = {
    "audio": ((), "Audio output"),
    "continue_final_message": ((False,), "Continuing the final message"),
    "documents": (([],), "Passing documents to the chat template"),
    "echo": ((False,), "Echoing the prompt"),
    "function_call": (("none", "auto"), "Calling functions"),
    "functions": (([],), "Calling functions"),
    "length_penalty": ((1, 1.0), "Beam search"),
    "logits_processors": (([],), "Running logits processors"),
    "media_io_kwargs": (({},), "Multimodal input"),
    "mm_processor_kwargs": (({},), "Multimodal input"),
    "modalities": ((["text"],), "Output other than text"),
    "prompt_embeds": ((), "A prompt of embeddings"),
    "prompt_logprobs": ((), "Log-probabilities of the prompt"),
    "return_tokens_as_token_ids": ((False,), "Token ids in place of tokens"),
    "spaces_between_special_tokens": ((True,), "Leaving out spaces between special tokens"),
    "suffix": (("",), "Text after the completion"),
    "truncate_prompt_tokens": ((), "Truncating the prompt"),
    "use_beam_search": ((False,), "Beam search"),
    "web_search_options": ((), "Web search"),
}

STRUCTURED_OUTPUT = frozenset(
    {"grammar", "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex"}
    | {"guided_whitespace_pattern", "json_schema", "regex", "structural_tag", "structured_outputs"}
)
FORMATS = ("text", "json_object", "json_schema", "structural_tag")

KNOWN_AND_UNSUPPORTED = frozenset(DEMANDS) | STRUCTURED_OUTPUT | {"chat_template"}


def refuse_unsupported(params: Mapping[str, Any]) -> None:
    """RequestError if any parameter demands what cannot be done here."""
    if params.get("chat_template") is not None:
        raise invalid("chat_template cannot be given in a request; the model's own is used.", "chat_template")
    for name in params.keys() & DEMANDS.keys():
        harmless, what = DEMANDS[name]
        value = params[name]
        if value is not None and not any(type(value) is type(other) and value == other for other in harmless):
            raise unsupported(name, what)
    _refuse_structured_output(params)


def _refuse_structured_output(params: Mapping[str, Any]) -> None:
    response_format = params.get("response_format")
    modes = [name for name in params if name in STRUCTURED_OUTPUT and params[name] is not None]
    if response_format is not None:
        kind = response_format.get("type") if isinstance(response_format, dict) else None
        if not isinstance(kind, str) or kind not in FORMATS:
            raise wrong("response_format", f"an object whose type is one of {', '.join(FORMATS)}", response_format)
        if kind != "text":
            modes.insert(0, "response_format")
    if len(modes) > 1:
        raise invalid(f"Only one structured-output mode can be used at once; got {' and '.join(modes)}.", modes[0])
    if modes:
        raise unsupported(modes[0], "Structured output")
