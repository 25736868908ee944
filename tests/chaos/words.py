"""The served model's tokenizer as a client needs it: what token ids mean, by the library and not by code of ours."""

from tokenizers import Tokenizer

from shared.repository.store import ModelRepository

# As byte-level BPE spells the bytes F0 9F 98 80 of an emoji and E6 BC A2 of a Chinese character: drawn at random, they
# make whole characters, halves of them and nonsense.
SPELLED_BYTES = "ðŁĺĢæ¼¢"


class Words:
    """model: its name. byte_ids: tokens that are no whole character."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._tokenizer = Tokenizer.from_file(str(ModelRepository(None).ensure(model).tokenizer_file))
        found = {character: self._tokenizer.token_to_id(character) for character in SPELLED_BYTES}
        self.byte_ids = [token_id for token_id in found.values() if token_id is not None]

    def decode(self, token_ids: list[int]) -> str:
        """Their text."""
        return str(self._tokenizer.decode(token_ids))
