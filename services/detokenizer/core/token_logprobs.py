"""Log-probabilities of tokens with the texts of the tokens."""

from services.detokenizer.core.vocabulary import Vocabulary
from shared.messages.pipeline import RowLogprobs, TokenLogprob


def token_logprob(vocabulary: Vocabulary, token_id: int, row: RowLogprobs, offset: int) -> TokenLogprob:
    """What a client sees of one row; offset: characters of text before the token (TextView.offset)."""
    text = vocabulary.token_text
    top = tuple((text(other), logprob, other) for other, logprob in zip(row.top_ids, row.top_logprobs, strict=False))
    return TokenLogprob(text(token_id), token_id, row.logprob, offset, top)
