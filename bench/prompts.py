"""Prompts of an exact number of tokens, as ids and as text that encodes to the very same ids."""

import random
from pathlib import Path

from tokenizers import Tokenizer

from bench.core.plan import Prompt
from bench.errors import BenchError
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository

WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its about "
    "than into them can only other time new some could these two may first then do any like my now over such our man "
    "me even most made after also did many off before must well back through years where much your way down should "
    "because long each just state people how little good world make very year still see own work men day get here old "
    "life both between being under three never know same last another while us might great go come since against right "
    "came take used himself few house use place during high without again home around small however found part school "
    "every number water system river engine memory letter bridge market window paper summer winter teacher village "
    "island forest signal record morning evening history science music question picture table kitchen machine street"
).split()

MAX_DRAWS = 50


class PromptError(BenchError):
    """No tokenizer, or one with which a prompt of this length cannot be made."""


class PromptMaker:
    """Draws prompts of plain words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_special = tokenizer.num_special_tokens_to_add(False)

    @classmethod
    def find(cls, name: str) -> "PromptMaker":
        """Of a tokenizer.json, of a folder that holds one, or of a model in the user's model repository; a known one
        is added. Raises PromptError."""
        path = Path(name)
        if path.is_dir():
            path = path / "tokenizer.json"
        try:
            if not path.is_file():
                path = ModelRepository().ensure(name).tokenizer_file
            return cls(Tokenizer.from_file(str(path)))
        except ModelError as error:
            raise PromptError(f"no tokenizer for {name!r} ({error}): give --tokenizer FILE") from None
        except Exception as error:  # tokenizers raises Exception itself for a file that it cannot read
            raise PromptError(f"{path} is no tokenizer.json: {error}") from None

    def draw(self, draw: random.Random, num_tokens: int, prefix: str = "") -> Prompt:
        """A prompt of exactly num_tokens, special tokens included, that begins with the text prefix.

        Another draw gives another beginning, so that no prefix cache hits by chance. Raises PromptError.
        """
        for _ in range(MAX_DRAWS):
            words = [draw.choice(WORDS) for _ in range(num_tokens + 1)]
            text = prefix + (" " if prefix else "") + " ".join(words)
            ids = self._encode(text)
            text = self._tokenizer.decode(ids[self._num_special : num_tokens], skip_special_tokens=False)
            ids = self._encode(text)
            if len(ids) == num_tokens and text.startswith(prefix):
                return Prompt(text, tuple(ids), num_tokens)
        raise PromptError(f"no prompt of exactly {num_tokens} tokens can be made with this tokenizer")

    def of_text(self, text: str, max_tokens: int | None = None) -> Prompt:
        """The prompt of a given text, cut to at most max_tokens tokens if asked."""
        ids = self._encode(text)
        if max_tokens is not None and len(ids) > max_tokens:
            text = self._tokenizer.decode(ids[self._num_special : max_tokens], skip_special_tokens=False)
            ids = self._encode(text)
        return Prompt(text, tuple(ids), len(ids))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids
