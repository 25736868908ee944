"""Answers to Describe: what the fold says of a request, at once or as soon as the request is folded."""

from collections.abc import Iterator

from shared.log.fold import Fold
from shared.log.state import RequestState
from shared.messages.control import Describe, Described

MAX_WAIT_S = 5.0

Answer = tuple[str, Described]


class Descriptions:
    """All questions to one detokenizer. name: its incarnation. Times are seconds of a monotonic clock.

    Every method yields answers, each with the reply subject that it belongs to.
    """

    def __init__(self, fold: Fold, name: str) -> None:
        self._fold = fold
        self._name = name
        self._waiting: dict[str, list[tuple[Describe, str, float]]] = {}

    def on_describe(self, describe: Describe, reply: str, now: float, *, live: bool) -> Iterator[Answer]:
        """A question. live: whether the fold knows the end of the log."""
        request_id = describe.request_id
        state = self._fold.requests.get(request_id)
        tombstone = self._fold.tombstones.get(request_id)
        if state is not None:
            yield reply, self._describe(state, describe)
        elif tombstone is not None and not tombstone.is_early_cancel:
            yield reply, Described(detokenizer=self._name, found=False, forgotten=True, live=live)
        elif describe.wait_s > 0:
            until = now + min(describe.wait_s, MAX_WAIT_S)
            self._waiting.setdefault(request_id, []).append((describe, reply, until))
        else:
            yield reply, Described(detokenizer=self._name, found=False, live=live)

    def on_request(self, request_id: str) -> Iterator[Answer]:
        """The request is folded now."""
        state = self._fold.requests.get(request_id)
        if state is not None:
            for describe, reply, _ in self._waiting.pop(request_id, ()):
                yield reply, self._describe(state, describe)

    def tick(self, now: float, *, live: bool) -> Iterator[Answer]:
        """Several times a second: whoever waited long enough is told that there is nothing."""
        for request_id, questions in list(self._waiting.items()):
            yield from self.on_request(request_id)  # a snapshot may have brought it
            left = [question for question in questions if question[2] > now]
            if request_id not in self._waiting or len(left) == len(questions):
                continue
            for _, reply, until in questions:
                if until <= now:
                    yield reply, Described(detokenizer=self._name, found=False, live=live)
            if left:
                self._waiting[request_id] = left
            else:
                del self._waiting[request_id]

    def _describe(self, state: RequestState, describe: Describe) -> Described:
        request = state.request
        return Described(
            detokenizer=self._name,
            found=True,
            live=True,
            num_choices=request.sampling.n,
            num_prompt_tokens=state.num_prompt_tokens,
            has_logprobs=request.sampling.logprobs is not None,
            model=request.model,
            created_ns=request.created_ns,
            deadline_ns=request.deadline_ns,
            owner=request.owner,
            keep_s=request.keep_s,
            origin=request.origin,
            prompt_token_ids=request.prompt_token_ids if describe.with_prompt else b"",
        )
