"""A served model around a tiny tokenizer, without any weights."""

from typing import Any

from tokenizers import Tokenizer, processors

from services.tokenizer.core.chat_template import ChatTemplate
from services.tokenizer.core.prompt_encoder import PromptEncoder
from services.tokenizer.core.served_model import ServedModel
from tests.text.tiny_tokenizers import byte_level

NAME = "tiny"
MAX_MODEL_LEN = 256

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, adding <|endoftext|> before every text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair=None, special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer


def encoder(template: str | None = CHATML, bos: bool = False) -> PromptEncoder:
    """A prompt encoder over the byte-level tokenizer; special tokens have the ids 0 to 2."""
    pair = [with_bos(byte_level()) if bos else byte_level() for _ in range(2)]
    compiled = None if template is None else ChatTemplate(template, {"bos_token": "<|endoftext|>"})
    return PromptEncoder(*pair, compiled, 0 if bos else None)


def served_model(**overrides: Any) -> ServedModel:
    """A model called tiny with a context of 256 tokens."""
    fields: dict[str, Any] = {
        "name": NAME,
        "shown_as": NAME,
        "version": "1",
        "root": NAME,
        "created": 1_700_000_000,
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": byte_level().get_vocab_size(),
        "eos_token_ids": (2,),
        "generation_defaults": {"temperature": 0.5},
        "encoder": encoder(),
    }
    return ServedModel(**{**fields, **overrides})
