"""Log-probabilities in the two shapes that OpenAI has for them."""

from collections.abc import Sequence

from shared.messages.pipeline import TokenLogprob


def completion_logprobs(rows: Sequence[TokenLogprob]) -> dict[str, object]:
    """The columns of a completion's choice. top_logprobs holds the sampled token beside the alternatives."""
    return {
        "text_offset": [row.offset for row in rows],
        "token_logprobs": [row.logprob for row in rows],
        "tokens": [row.token for row in rows],
        "top_logprobs": [{**{text: logprob for text, logprob, _ in row.top}, row.token: row.logprob} for row in rows],
    }


def chat_logprobs(rows: Sequence[TokenLogprob]) -> dict[str, object]:
    """The rows of a chat's choice."""
    return {
        "content": [
            {
                **_entry(row.token, row.logprob),
                "top_logprobs": [_entry(text, logprob) for text, logprob, _ in row.top],
            }
            for row in rows
        ],
        "refusal": None,
    }


def _entry(token: str, logprob: float) -> dict[str, object]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}
