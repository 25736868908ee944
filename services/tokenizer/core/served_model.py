"""A model that requests can name, and its loading from the repository."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tokenizers import Tokenizer

from services.tokenizer.core.chat_template import ChatTemplate, TemplateSyntaxError
from services.tokenizer.core.prompt_encoder import PromptEncoder
from shared.messages.control import ModelCard
from shared.repository.stored_model import StoredModel


class ModelLoadError(ValueError):
    """The model's tokenizer or chat template cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: what clients ask for; shown_as: what answers call it; root: the model in the repository, by which all other
    services know it.

    max_model_len in tokens; eos_token_ids end a sequence; created: Unix seconds.
    """

    name: str
    shown_as: str
    version: str
    root: str
    created: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float]
    encoder: PromptEncoder

    def context_length(self, of_workers: int) -> int:
        """Longest sequence in tokens, where the workers' own limit (0: not known yet) may be smaller."""
        return min(self.max_model_len, of_workers) if of_workers > 0 else self.max_model_len

    def card(self, of_workers: int) -> ModelCard:
        """What gateways list."""
        return ModelCard(
            name=self.name,
            version=self.version,
            max_model_len=self.context_length(of_workers),
            vocab_size=self.vocab_size,
            created=self.created,
            root=self.root,
            shown_as=self.shown_as,
        )


def load_served_model(model: StoredModel, name: str, max_model_len: int | None) -> ServedModel:
    """Reads the tokenizer; takes some 100 ms. max_model_len: None for the model's own.

    Raises ModelLoadError for a tokenizer.json that is none, a broken template, or a max_model_len beyond the model's.
    """
    longest = model.config.max_position_embeddings
    if max_model_len is not None and max_model_len > longest:
        raise ModelLoadError(f"max_model_len {max_model_len} is beyond the model's {longest} tokens")
    special_tokens = {"bos_token": model.bos_token, "eos_token": model.eos_token}
    known = {key: token for key, token in special_tokens.items() if token is not None}
    try:
        template = None if model.chat_template is None else ChatTemplate(model.chat_template, known)
    except TemplateSyntaxError as error:
        raise ModelLoadError(f"chat template of {model.name}: {error}") from error
    encoder = PromptEncoder(
        read_tokenizer(model),
        read_tokenizer(model),
        template,
        model.bos_token_id if model.add_bos_token else None,
    )
    return ServedModel(
        name=name,
        shown_as=name,
        version=model.version,
        root=model.name,
        created=int(datetime.fromisoformat(model.manifest.created).timestamp()),
        max_model_len=max_model_len or longest,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.eos_token_ids,
        generation_defaults=model.generation_defaults,
        encoder=encoder,
    )


def read_tokenizer(model: StoredModel) -> Tokenizer:
    """The model's tokenizer.json, without truncation and padding. ModelLoadError if it is none."""
    try:
        tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    except Exception as error:  # the library raises plain Exception for whatever is wrong with the file
        raise ModelLoadError(f"{model.tokenizer_file}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
