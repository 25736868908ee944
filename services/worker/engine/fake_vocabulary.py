"""Which ids a fake engine may draw: those of the real model's tokenizer that stand for text."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ordinary_token_ids(tokenizer: dict[str, Any], vocab_size: int) -> NDArray[np.int32]:
    """int32, ascending: ids below vocab_size in the vocabulary of a tokenizer.json that are no special tokens.

    Raises ValueError if there are none.
    """
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    known = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
    for added in tokenizer.get("added_tokens", []):
        if added.get("special", False):
            known.discard(added["id"])
        else:
            known.add(added["id"])
    ids = sorted(token_id for token_id in known if 0 <= token_id < vocab_size)
    if not ids:
        raise ValueError("the tokenizer has no ordinary tokens")
    return np.array(ids, dtype=np.int32)
