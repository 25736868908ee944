"""Deltas as plain clients read them."""

from shared.endings import FINISH_REASONS
from shared.messages.client import (
    ClientChoice,
    ClientDelta,
    ClientEnd,
    ClientEndChoice,
    ClientError,
    ClientMessage,
    ClientTokenLogprob,
    ClientUsage,
)
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Delta, TokenLogprob


class ClientFormatter:
    """One plain client's messages: deltas numbered from 1, then one end or one error.

    num_choices is known once the request is folded; the end message waits for the last choice. After an error, of
    whichever choice, there is nothing.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._failed = False
        self._ends: dict[int, ClientEndChoice] = {}
        self._positions: dict[int, int] = {}

    def messages(self, delta: Delta, num_choices: int) -> list[ClientMessage]:
        """What this delta makes the client read."""
        messages: list[ClientMessage] = []
        if self._failed:
            return messages
        if delta.stop > delta.start or delta.text:
            self._seq += 1
            messages.append(ClientDelta(self._seq, [_choice(delta)]))
        if delta.error is not None:
            self._failed = True
            messages.append(ClientError(delta.error))
        elif delta.end is not None:
            self._ends[delta.choice] = ClientEndChoice(delta.choice, FINISH_REASONS[delta.end], delta.stop_reason)
            self._positions[delta.choice] = delta.stop
            if len(self._ends) == num_choices:
                self._seq += 1
                messages.append(self._end(delta.num_prompt_tokens))
        return messages

    def _end(self, num_prompt_tokens: int) -> ClientEnd:
        completion = sum(self._positions.values())
        usage = ClientUsage(num_prompt_tokens, completion, num_prompt_tokens + completion)
        return ClientEnd(self._seq, [self._ends[index] for index in sorted(self._ends)], usage)


def _choice(delta: Delta) -> ClientChoice:
    return ClientChoice(
        index=delta.choice,
        from_=delta.start,
        to=delta.stop,
        text=delta.text,
        token_ids=list(unpack_tokens(delta.token_ids)),
        logprobs=[_logprob(entry) for entry in delta.logprobs] or None,
    )


def _logprob(entry: TokenLogprob) -> ClientTokenLogprob:
    top = [ClientTokenLogprob(text, token_id, logprob) for text, logprob, token_id in entry.top]
    return ClientTokenLogprob(entry.token, entry.token_id, entry.logprob, top)
