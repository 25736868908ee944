"""What is taken into the repository: a model's files, found and understood but not copied yet."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile
from shared.repository.manifest import TOKENIZER_FILE

MAX_TOKENIZER_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model ready to be copied: files are copied from where they are, texts are written anew.

    files: name in the version's folder -> file to copy. texts: name -> contents of a file made here.
    The other fields are those of Manifest.
    """

    description: str
    config: ModelConfig
    weight_format: str
    weight_files: tuple[str, ...]
    files: dict[str, Path]
    texts: dict[str, str]
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    add_bos_token: bool
    generation_defaults: dict[str, int | float]


def load_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json. Raises BadModelFile when there is none in it."""
    if not file.is_file():
        raise BadModelFile(file, f"the file is missing: a model needs a {TOKENIZER_FILE}")
    if file.stat().st_size > MAX_TOKENIZER_BYTES:
        raise BadModelFile(file, f"longer than {MAX_TOKENIZER_BYTES} bytes")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for whatever it cannot parse
        raise BadModelFile(file, f"holds no tokenizer ({error})") from error


def check_token_ids(config: ModelConfig, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...], file: Path) -> None:
    """Every id that the tokenizer can write and every EOS id must have a row in the embedding.

    Raises BadModelFile, naming file.
    """
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest < 0:
        raise BadModelFile(file, "the tokenizer has no tokens")
    if highest >= config.vocab_size:
        raise BadModelFile(file, f"the tokenizer writes ids up to {highest}, vocab_size is {config.vocab_size}")
    for token_id in eos_token_ids:
        if not 0 <= token_id < config.vocab_size:
            raise BadModelFile(file, f"EOS id {token_id} is not in the vocabulary of {config.vocab_size}")


def adds_bos(tokenizer: Tokenizer, bos_token_id: int | None) -> bool:
    """Whether the tokenizer's own post-processing puts BOS before a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    return bos_token_id is not None and full[:1] == [bos_token_id] and plain[:1] != [bos_token_id]
