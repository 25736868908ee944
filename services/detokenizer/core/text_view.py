"""The text of one sequence by token position: what a reader at any position has, and where the text ends it.

text_upto(k) is a pure function of the sampling parameters and the first k token ids, and a prefix of text_upto(k + 1).
Every detokenizer that ever builds it, from the start or over any split of the tokens, finds the same (rules 6 and 14).
"""

from array import array
from collections.abc import Iterable

from services.detokenizer.core.stops import find_stop, num_held_back
from services.detokenizer.core.vocabulary import Vocabulary
from shared.endings import Endings
from shared.messages.pipeline import EndReason
from shared.messages.sampling import Sampling


class TextView:
    """Feed it a sequence's output token ids in order; it builds text and finds the end that they make.

    num_tokens: tokens taken so far; tokens after the end are ignored. end: the final number of tokens once the tokens
    themselves end the sequence (EOS, stop token, length, stop string), with its reason; stop_string: the one found.
    A sequence that ends otherwise (cancel, deadline, error) has text_upto(its position), which keeps back half
    characters and what may be the start of a stop string.
    """

    __slots__ = (
        "_endings",
        "_include_stop",
        "_lengths",
        "_max_stop_characters",
        "_offsets",
        "_settled",
        "_stops",
        "_stream",
        "end",
        "num_tokens",
        "reason",
        "stop_string",
    )

    def __init__(self, vocabulary: Vocabulary, sampling: Sampling) -> None:
        self._stream = vocabulary.stream(sampling.skip_special_tokens)
        self._endings = Endings(sampling)
        self._stops = sampling.stop
        self._max_stop_characters = max(map(len, sampling.stop), default=0)
        self._include_stop = sampling.include_stop_str_in_output
        self._settled = ""
        self._lengths = array("I", [0])
        self._offsets: array[int] | None = array("I") if sampling.logprobs is not None else None
        self.num_tokens = 0
        self.end: int | None = None
        self.reason: EndReason | None = None
        self.stop_string: str | None = None

    @property
    def text(self) -> str:
        """The text that a reader may have now: text_upto(num_tokens)."""
        return self._settled[: self._lengths[-1]]

    def text_upto(self, position: int) -> str:
        """The text of the first `position` tokens."""
        return self._settled[: self._length(position)]

    def text_between(self, start: int, stop: int) -> str:
        """What a reader at token position `start` lacks up to position `stop`."""
        return self._settled[self._length(start) : self._length(stop)]

    def offset(self, position: int) -> int:
        """Characters of text before the token at this position; only kept for requests with logprobs."""
        if self._offsets is None:
            raise ValueError("offsets are only kept where log-probabilities are asked for")
        return self._offsets[position]

    def feed(self, token_ids: Iterable[int]) -> None:
        """Take the next output tokens."""
        for token_id in token_ids:
            if self.end is not None:
                return
            self._take(token_id)

    def _length(self, position: int) -> int:
        return self._lengths[min(position, self.num_tokens)]

    def _take(self, token_id: int) -> None:
        self.num_tokens += 1
        if self._offsets is not None:
            self._offsets.append(len(self._settled))
        reason = self._endings.after(token_id, self.num_tokens)
        if reason is None or reason == "length" or self._include_stop:
            num_seen = len(self._settled)
            gained = self._stream.push(token_id)
            if gained:
                self._settled += gained
            if self._stops and self._cut_at_stop(num_seen):
                reason = "stop_string"
        if reason is None:
            held = num_held_back(self._recent(self._max_stop_characters), self._stops) if self._stops else 0
            self._lengths.append(len(self._settled) - held)
            return
        if reason != "stop_string":
            self._settled += self._stream.tail()
        self.end, self.reason = self.num_tokens, reason
        self._lengths.append(len(self._settled))

    def _recent(self, num_characters: int) -> str:
        return self._settled[-num_characters:] if num_characters else ""

    def _cut_at_stop(self, num_seen: int) -> bool:
        """Cut the text at a stop string that decode of the tokens so far holds and of one token less did not.

        num_seen: settled characters before the newest token. A stop string counts beyond the first min_tokens tokens.
        """
        if self.num_tokens <= self._endings.min_tokens:
            return False
        base = max(0, num_seen - self._max_stop_characters + 1)
        window = self._settled[base:] + self._stream.tail()
        found = find_stop(window, num_seen - base, self._stops)
        if found is None:
            return False
        index, self.stop_string = found
        cut = index + len(self.stop_string) if self._include_stop else index
        self._settled = self._settled[:base] + window[:cut]
        return True


def text_upto(vocabulary: Vocabulary, sampling: Sampling, token_ids: Iterable[int]) -> str:
    """The text of a sequence with these output tokens, from scratch."""
    view = TextView(vocabulary, sampling)
    view.feed(token_ids)
    return view.text
