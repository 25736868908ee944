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

MAX_RECENT = 256


class TextView:
    """Feed it a sequence's output token ids in order; it builds text and finds the end that they make.

    num_tokens: tokens taken so far; tokens after the end are ignored. end: the final number of tokens once the tokens
    themselves end the sequence (EOS, stop token, length, stop string), with its reason; stop_string: the one found.
    A sequence that ends otherwise (cancel, deadline, error) has text_upto(its position), which keeps back half
    characters and what may be the start of a stop string.
    """

    __slots__ = (
        "_base",
        "_endings",
        "_first_characters",
        "_held",
        "_include_stop",
        "_lengths",
        "_offsets",
        "_old",
        "_recent",
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
        self._first_characters = frozenset(stop[0] for stop in sampling.stop)
        self._include_stop = sampling.include_stop_str_in_output
        # Text that readers may have: of the first _base tokens as one string, then one string per token.
        self._old = ""
        self._base = 0
        self._recent: list[str] = []
        self._held = ""
        self._lengths = array("I", [0])
        self._offsets: array[int] | None = array("I") if sampling.logprobs is not None else None
        self.num_tokens = 0
        self.end: int | None = None
        self.reason: EndReason | None = None
        self.stop_string: str | None = None

    @property
    def text(self) -> str:
        """The text that a reader may have now: text_upto(num_tokens)."""
        return self._old + "".join(self._recent)

    def text_upto(self, position: int) -> str:
        """The text of the first `position` tokens."""
        return self.text_between(0, position)

    def text_between(self, start: int, stop: int) -> str:
        """What a reader at token position `start` lacks up to position `stop`."""
        base = self._base
        if start >= base:
            if start + 1 == stop == self.num_tokens:
                return self._recent[-1]  # as nearly always
            return "".join(self._recent[start - base : max(0, stop - base)])
        return self.text[self._length(start) : self._length(stop)]

    def offset(self, position: int) -> int:
        """Characters of text before the token at this position; only kept for requests with logprobs."""
        if self._offsets is None:
            raise ValueError("offsets are only kept where log-probabilities are asked for")
        return self._offsets[position]

    def feed(self, token_ids: Iterable[int]) -> None:
        """Take the next output tokens."""
        for token_id in token_ids:
            self.take(token_id)

    def _length(self, position: int) -> int:
        return self._lengths[min(position, self.num_tokens)]

    def take(self, token_id: int) -> None:
        """Take the next output token."""
        if self.end is not None:
            return
        self.num_tokens += 1
        if self._offsets is not None:
            self._offsets.append(self._lengths[-1] + len(self._held))
        reason = self._endings.after(token_id, self.num_tokens)
        is_shown = reason is None or reason == "length" or self._include_stop
        gained = self._stream.push(token_id) if is_shown else ""
        if self._stops and is_shown:
            gained = self._up_to_stop(gained)
        if self.stop_string is not None:
            reason = "stop_string"
        elif reason is not None:
            gained += self._held + self._stream.tail()
            self._held = ""
        if reason is not None:
            self.end, self.reason = self.num_tokens, reason
        self._append(gained)

    def _append(self, text: str) -> None:
        self._recent.append(text)
        self._lengths.append(self._lengths[-1] + len(text))
        if len(self._recent) >= MAX_RECENT:
            self._old += "".join(self._recent)
            self._base += len(self._recent)
            self._recent.clear()

    def _up_to_stop(self, gained: str) -> str:
        """What may be sent of the text held back and the text just settled; the rest is held back.

        A stop string counts beyond the first min_tokens tokens, if decode of the tokens so far holds it and decode of
        one token less did not. None can begin before the text held back: that is all with which one may begin.
        """
        tail = self._stream.tail()
        if not self._held and not tail and self._first_characters.isdisjoint(gained):
            return gained
        settled = self._held + gained
        if self.num_tokens > self._endings.min_tokens:
            found = find_stop(settled + tail, len(self._held), self._stops)
            if found is not None:
                index, self.stop_string = found
                self._held = ""
                return (settled + tail)[: index + len(self.stop_string) if self._include_stop else index]
        num_sent = len(settled) - num_held_back(settled, self._stops)
        self._held = settled[num_sent:]
        return settled[:num_sent]


def text_upto(vocabulary: Vocabulary, sampling: Sampling, token_ids: Iterable[int]) -> str:
    """The text of a sequence with these output tokens, from scratch."""
    view = TextView(vocabulary, sampling)
    view.feed(token_ids)
    return view.text
