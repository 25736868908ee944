"""The detokenizer's decisions: which text goes to whom, which ends and outcomes go into the log.

Fed with what the fold changed and with who attaches; its outbox is emptied by the shell. All of it is a function of
the fold and of the readers' own positions, so that any detokenizer can go on where another stopped (rules 14 and 15).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.detokenizer.core.attachments import Attachment, Attachments
from services.detokenizer.core.ends import EndOfSequence, end_of, error_of, stop_reason_of
from services.detokenizer.core.text_view import TextView
from services.detokenizer.core.token_logprobs import token_logprob
from services.detokenizer.core.vocabulary import Vocabulary
from shared.errors import INVALID_REQUEST
from shared.log.fold import Fold
from shared.log.state import RequestState, SequenceState
from shared.messages.control import Attach, Detach
from shared.messages.packed import pack_part
from shared.messages.pipeline import Delta, Done, End, ErrorBody, Request, TokenLogprob

DONE_DELAY_S = 2.0
UNKNOWN_S = 5.0
# A reader that comes late lacks any number of tokens, each with twenty log-probabilities: more than a message holds.
MAX_DELTA_TOKENS = 256


@dataclass(slots=True)
class Outbox:
    """What the shell has to send. deltas: in order, each with its reader. records: for the log, with message ids."""

    deltas: list[tuple[Attachment, Delta]] = field(default_factory=list)
    records: list[tuple[End | Done, str]] = field(default_factory=list)


class Desk:
    """All readers and texts of one detokenizer.

    vocabulary: the tokens of a request's model, or None while they are being loaded; the shell calls changed() for
    what waits once they are. Times are seconds of a monotonic clock, given by the caller.
    """

    def __init__(self, fold: Fold, vocabulary: Callable[[Request], Vocabulary | None]) -> None:
        self._fold = fold
        self._vocabulary = vocabulary
        self.attachments = Attachments()
        self.outbox = Outbox()
        self._views: dict[int, TextView] = {}
        self._stops_reported: set[int] = set()
        self._done_reported: set[str] = set()
        self._done_due: dict[str, float] = {}

    def take_outbox(self) -> Outbox:
        """Everything to be sent since the last call."""
        outbox, self.outbox = self.outbox, Outbox()
        return outbox

    # ---- what happens -----------------------------------------------------------------------------------------------

    def changed(self, sequences: Iterable[SequenceState], now: float) -> None:
        """These sequences gained tokens, began or ended."""
        for sequence in sequences:
            self._advance(sequence, now)

    def reloaded(self, now: float) -> None:
        """The fold was replaced by a snapshot: all text is made anew from it."""
        self._views.clear()
        self._stops_reported.clear()
        self._done_reported.clear()
        self._done_due.clear()
        self.changed(list(self._fold.sequences.values()), now)

    def attach(self, attach: Attach, now: float) -> None:
        """A reader wants text from its positions on; one whose request is not folded yet waits for it."""
        if self.attachments.is_outdated(attach):
            return
        attachment = Attachment(attach, now, list(attach.positions))
        state = self._fold.requests.get(attach.request_id)
        tombstone = self._fold.tombstones.get(attach.request_id)
        if state is None and tombstone is not None and not tombstone.is_early_cancel:
            self._refuse(attachment, "The request has ended and is no longer kept.")
            return
        self.attachments.add(attachment)
        if state is not None:
            self.changed(state.sequences, now)

    def detach(self, detach: Detach, now: float) -> None:
        """A reader is gone."""
        self.attachments.detach(detach, now)

    def tick(self, now: float, *, live: bool = True) -> None:
        """Several times a second: outcomes that no reader's detokenizer wrote, readers of what does not exist.

        live: whether the fold knows the end of the log; what is not folded may be there otherwise.
        """
        self.attachments.forget_ended(now)
        for request_id, due in list(self._done_due.items()):
            state = self._fold.requests.get(request_id)
            if state is None or state.done is not None:
                del self._done_due[request_id]
            elif now >= due:
                self._done_due[request_id] = now + DONE_DELAY_S
                self._done_reported.discard(request_id)
                self._report_done(state)
        for attachment in self.attachments:
            if attachment.attach.request_id in self._fold.requests:
                continue
            if not live:
                attachment.since = now
            elif now - attachment.since > UNKNOWN_S:
                self.attachments.remove(attachment)
                self._refuse(attachment, "There is no such request.")

    def forget_retired(self) -> None:
        """Drop the text of requests that the fold has forgotten."""
        known = self._fold.sequences
        self._views = {number: view for number, view in self._views.items() if number in known}
        self._stops_reported &= known.keys()
        self._done_reported &= self._fold.requests.keys()

    # ---- one sequence -----------------------------------------------------------------------------------------------

    def _advance(self, sequence: SequenceState, now: float) -> None:
        request = sequence.request
        request_id = request.request_id
        readers = self.attachments.of(request_id)
        if not readers and not request.sampling.stop:
            if sequence.end is not None:
                self._note_end(request_id, now)
            return
        view = self._scan(sequence)
        if view is None:
            return
        end = None
        if sequence.end is not None or view.end is not None:
            end = end_of(sequence, view)
        if end is not None:
            if end.reason == "stop_string":
                self._report_stop(sequence, end)
            self._note_end(request_id, now)
        for attachment in readers:
            self._serve(attachment, sequence, view, end)

    def _scan(self, sequence: SequenceState) -> TextView | None:
        """The text of the sequence as far as it is folded."""
        view = self._views.get(sequence.id)
        if view is None:
            vocabulary = self._vocabulary(sequence.request)
            if vocabulary is None:
                return None
            view = self._views[sequence.id] = TextView(vocabulary, sequence.request.sampling)
        tokens = sequence.tokens
        if view.num_tokens == len(tokens) - 1:
            view.take(tokens[-1])
        elif view.num_tokens < len(tokens):
            view.feed(tokens[view.num_tokens :])
        return view

    def _report_stop(self, sequence: SequenceState, end: EndOfSequence) -> None:
        if sequence.id in self._stops_reported or (sequence.end, sequence.reason) == (end.position, end.reason):
            return
        self._stops_reported.add(sequence.id)
        record = End(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            reason="stop_string",
            position=end.position,
        )
        self.outbox.records.append((record, f"stop-{sequence.id}"))

    def _note_end(self, request_id: str, now: float) -> None:
        """Somebody must write the outcome: the detokenizer with the reader at once, any other one later (rule 7)."""
        if self._fold.requests[request_id].done is None:
            self._done_due.setdefault(request_id, now + DONE_DELAY_S)

    def _report_done(self, state: RequestState) -> None:
        """Write the outcome, once all choices have ended."""
        request_id = state.request.request_id
        if state.done is not None or request_id in self._done_reported:
            return
        ends = []
        for sequence in state.sequences:
            view = self._scan(sequence) if sequence.request.sampling.stop else None
            if sequence.request.sampling.stop and view is None:
                return
            end = end_of(sequence, view)
            if end is None:
                return
            ends.append(end)
        self._done_reported.add(request_id)
        positions = tuple(end.position for end in ends)
        reasons = tuple(end.reason for end in ends)
        done = Done(request_id=request_id, positions=positions, reasons=reasons)
        self.outbox.records.append((done, f"done-{request_id}"))

    # ---- one reader -------------------------------------------------------------------------------------------------

    def _serve(
        self, attachment: Attachment, sequence: SequenceState, view: TextView, end: EndOfSequence | None
    ) -> None:
        """Send what this reader lacks. Its position may be ahead of this fold; then it waits (rule 15).

        A reader that says it has more than there ever will be is told of the end all the same.
        """
        choice = sequence.choice
        if choice in attachment.ended:
            return
        positions = attachment.positions
        while len(positions) <= choice:
            positions.append(0)
        start = positions[choice]
        stop = max(start, end.position if end is not None else view.num_tokens)
        if stop == start and end is None:
            return
        while stop - start > MAX_DELTA_TOKENS:
            part = start + MAX_DELTA_TOKENS
            self.outbox.deltas.append((attachment, self._delta(attachment, sequence, view, None, start, part)))
            start = part
        self.outbox.deltas.append((attachment, self._delta(attachment, sequence, view, end, start, stop)))
        positions[choice] = stop
        if end is not None:
            attachment.ended.add(choice)
            state = self._fold.requests[sequence.request.request_id]
            if len(attachment.ended) == len(state.sequences):
                self.attachments.remove(attachment)
                self._report_done(state)

    def _delta(
        self,
        attachment: Attachment,
        sequence: SequenceState,
        view: TextView,
        end: EndOfSequence | None,
        start: int,
        stop: int,
    ) -> Delta:
        text = view.text_between(start, stop)
        token_ids = pack_part(sequence.tokens, start, stop)
        if end is None and not sequence.logprobs:
            return Delta(
                attach=attachment.attach.number,
                choice=sequence.choice,
                start=start,
                stop=stop,
                text=text,
                token_ids=token_ids,
            )
        return Delta(
            attach=attachment.attach.number,
            choice=sequence.choice,
            start=start,
            stop=stop,
            text=text,
            token_ids=token_ids,
            logprobs=self._logprobs(sequence, view, start, stop),
            end=end.reason if end else None,
            stop_reason=stop_reason_of(sequence, view, end.reason) if end else None,
            error=error_of(sequence, end.reason) if end else None,
            num_prompt_tokens=self._fold.requests[sequence.request.request_id].num_prompt_tokens,
        )

    def _logprobs(self, sequence: SequenceState, view: TextView, start: int, stop: int) -> list[TokenLogprob]:
        vocabulary = self._vocabulary(sequence.request)
        if vocabulary is None or not sequence.logprobs:
            return []
        return [
            token_logprob(vocabulary, sequence.tokens[position], row, view.offset(position))
            for position in range(start, stop)
            if (row := sequence.logprobs[position]) is not None
        ]

    def _refuse(self, attachment: Attachment, message: str) -> None:
        """On every choice that the reader asks for: it may have read some of them to their ends."""
        error = ErrorBody(message, INVALID_REQUEST, "request_id", "request_not_found")
        for choice, start in enumerate(attachment.positions or [0]):
            delta = Delta(
                attach=attachment.number, choice=choice, start=start, stop=start, text="", end="error", error=error
            )
            self.outbox.deltas.append((attachment, delta))
