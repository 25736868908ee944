"""The fold's state as bytes, and back (protocol rule 11).

capture() is quick and runs where the fold is mutated; encode() of what it captured may run in another thread.
"""

import msgspec

from shared.log.fold import Fold
from shared.log.state import RequestState, SequenceState, Tombstone
from shared.messages.codec import WireError
from shared.messages.packed import pack_tokens, unpack_tokens
from shared.messages.pipeline import Done, EndReason, Request, RowLogprobs


class SequenceImage(msgspec.Struct, array_like=True, frozen=True):
    """A SequenceState; tokens as int32 bytes."""

    tokens: bytes
    prefix_hash: int
    end: int | None
    reason: EndReason | None
    message: str
    param: str | None
    code: str | None
    logprobs: list[RowLogprobs | None]


class RequestImage(msgspec.Struct, array_like=True, frozen=True):
    """A RequestState."""

    request: Request
    log_sequence: int
    done: Done | None
    sequences: list[SequenceImage]
    readers: list[str] = []
    unread_ns: int | None = None


class FoldImage(msgspec.Struct, array_like=True, frozen=True):
    """All of a Fold after record seq."""

    v: int
    seq: int
    clock_ns: int
    leader: str
    takeover: int
    newest_fence: int
    worker_fences: dict[str, int]
    next_steps: dict[str, int]
    requests: list[RequestImage]
    finished: list[tuple[int, str]]
    tombstones: dict[str, Tombstone]
    retired: dict[int, str]
    counts: dict[str, int]
    finished_resumable: list[tuple[int, str]] = []


IMAGE_VERSION = 1
_decoder = msgspec.msgpack.Decoder(FoldImage)


def capture(fold: Fold) -> FoldImage:
    """An image that shares nothing mutable with the fold."""
    return FoldImage(
        v=IMAGE_VERSION,
        seq=fold.seq,
        clock_ns=fold.clock_ns,
        leader=fold.leader,
        takeover=fold.takeover,
        newest_fence=fold.newest_fence,
        worker_fences=dict(fold.worker_fences),
        next_steps=dict(fold.next_steps),
        requests=[_request_image(state) for state in fold.requests.values()],
        finished=list(fold.finished),
        tombstones=dict(fold.tombstones),
        retired=dict(fold.retired),
        counts=dict(fold.counts),
        finished_resumable=list(fold.finished_resumable),
    )


def encode(image: FoldImage) -> bytes:
    """Bytes of an image."""
    return msgspec.msgpack.encode(image)


def restore(fold: Fold, data: bytes) -> None:
    """Replace the fold's state by the snapshot's. Raises WireError on bytes that are no snapshot of this version."""
    try:
        image = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"no snapshot: {error}") from None
    if image.v != IMAGE_VERSION:
        raise WireError(f"snapshot version {image.v}, expected {IMAGE_VERSION}")
    fold.seq, fold.clock_ns = image.seq, image.clock_ns
    fold.leader, fold.takeover, fold.newest_fence = image.leader, image.takeover, image.newest_fence
    fold.worker_fences, fold.next_steps = dict(image.worker_fences), dict(image.next_steps)
    fold.requests.clear()
    fold.sequences.clear()
    for request in image.requests:
        state = _request_state(request)
        fold.requests[state.request.request_id] = state
        fold.sequences.update({sequence.id: sequence for sequence in state.sequences})
    fold.finished.clear()
    fold.finished.extend(image.finished)
    fold.finished_resumable.clear()
    fold.finished_resumable.extend(image.finished_resumable)
    fold.tombstones, fold.retired = dict(image.tombstones), dict(image.retired)
    fold.counts.clear()
    fold.counts.update(image.counts)


def _request_image(state: RequestState) -> RequestImage:
    sequences = [
        SequenceImage(
            pack_tokens(sequence.tokens),
            sequence.prefix_hash,
            sequence.end,
            sequence.reason,
            sequence.message,
            sequence.param,
            sequence.code,
            list(sequence.logprobs),
        )
        for sequence in state.sequences
    ]
    return RequestImage(
        state.request, state.log_sequence, state.done, sequences, sorted(state.readers), state.unread_ns
    )


def _request_state(image: RequestImage) -> RequestState:
    state = RequestState(image.request, image.log_sequence)
    state.done = image.done
    state.readers, state.unread_ns = set(image.readers), image.unread_ns
    for sequence, saved in zip(state.sequences, image.sequences, strict=True):
        _load_sequence(sequence, saved)
    return state


def _load_sequence(sequence: SequenceState, saved: SequenceImage) -> None:
    sequence.tokens = unpack_tokens(saved.tokens)
    sequence.prefix_hash = saved.prefix_hash
    sequence.end, sequence.reason = saved.end, saved.reason
    sequence.message, sequence.param, sequence.code = saved.message, saved.param, saved.code
    sequence.logprobs = list(saved.logprobs)
