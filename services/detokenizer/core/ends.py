"""Where a sequence ends, from the fold and from its text, and what its reader is told of it."""

from dataclasses import dataclass

from services.detokenizer.core.text_view import TextView
from shared.errors import INVALID_REQUEST, SERVER, UNAVAILABLE
from shared.log.state import SequenceState
from shared.messages.pipeline import EndReason, ErrorBody
from shared.queue_limits import QUEUE_FULL

_ERRORS: dict[EndReason, tuple[str, str, str]] = {
    "deadline": (SERVER, "deadline_exceeded", "The request's deadline passed before it was finished."),
    "rejected": (INVALID_REQUEST, "rejected", "The request cannot be served."),
    "error": (SERVER, "engine_error", "The engine failed on this request."),
    "quarantined": (SERVER, "quarantined", "The request ended the workers that computed it."),
}


@dataclass(slots=True, frozen=True)
class EndOfSequence:
    """The final number of output tokens, and why."""

    position: int
    reason: EndReason


def end_of(sequence: SequenceState, view: TextView | None) -> EndOfSequence | None:
    """The sequence's end as a pure function of its folded tokens and End records; None while it runs.

    A stop string found in the text wins at an equal position (rule 6). view: its text, scanned as far as it is folded;
    needed only where there are stop strings.
    """
    if view is not None and view.end is not None and view.reason == "stop_string":
        if sequence.end is None or view.end <= sequence.end:
            return EndOfSequence(view.end, "stop_string")
    if sequence.end is None or sequence.reason is None:
        return None
    return EndOfSequence(sequence.end, sequence.reason)


def error_of(sequence: SequenceState, reason: EndReason) -> ErrorBody | None:
    """OpenAI's error object for ends that are failures, None for all others."""
    known = _ERRORS.get(reason)
    if known is None:
        return None
    kind, code, message = known
    if reason == "rejected" and sequence.code == QUEUE_FULL:
        kind = UNAVAILABLE
    return ErrorBody(sequence.message or message, kind, sequence.param, sequence.code or code)


def stop_reason_of(sequence: SequenceState, view: TextView, reason: EndReason) -> str | int | None:
    """vLLM's stop_reason: the stop string or stop token that ended the sequence."""
    if reason == "stop_string":
        return view.stop_string
    if reason == "stop_token" and sequence.tokens:
        return sequence.tokens[-1]
    return None
