"""Which ids a fake engine may draw: those of the real model's tokenizer that begin a word."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD_STARTS = ("Ġ", "▁")


def ordinary_token_ids(tokenizer: dict[str, Any], vocab_size: int) -> NDArray[np.int32]:
    """int32, ascending: ids below vocab_size in the vocabulary of a tokenizer.json that are no special tokens.

    Of these the ones that begin a word (after a blank), if the vocabulary has any: what the fake engine says reads as
    words, one a token. Raises ValueError if there are none at all.
    """
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    tokens = vocabulary if isinstance(vocabulary, dict) else {entry[0]: i for i, entry in enumerate(vocabulary)}
    words = {token_id for token, token_id in tokens.items() if token.startswith(WORD_STARTS) and len(token) > 1}
    known = words or set(tokens.values())
    for added in tokenizer.get("added_tokens", []):
        if added.get("special", False):
            known.discard(added["id"])
        else:
            known.add(added["id"])
    ids = sorted(token_id for token_id in known if 0 <= token_id < vocab_size)
    if not ids:
        raise ValueError("the tokenizer has no ordinary tokens")
    return np.array(ids, dtype=np.int32)
