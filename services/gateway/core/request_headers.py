"""Headers that say how a request is kept, found again, and for how long it may run."""

import hashlib
import re
from collections.abc import Callable

import msgspec

from shared.errors import RequestError, invalid

IDEMPOTENCY_KEY = "Idempotency-Key"
RESUMABLE = "X-Tokenbus-Resumable"
TIMEOUT = "X-Request-Timeout"
LAST_EVENT_ID = "Last-Event-ID"

KEEP_S = 60.0
MAX_POSITION = 2**31 - 1

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_POSITIONS = re.compile(r"[0-9]{1,10}(?:-[0-9]{1,10})*")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")
_PATH_ID = re.compile(r"(?:chatcmpl-|cmpl-)?([0-9a-f]{32})")

ReadHeader = Callable[[bytes], str | None]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a client's headers ask for. key: "" without one. keep_s: how long the request goes on without readers.
    timeout_s: seconds until it is ended; None for the server's own limit. positions: tokens of each choice that the
    client has; None for a new answer."""

    key: str = ""
    keep_s: float = 0.0
    timeout_s: float | None = None
    positions: tuple[int, ...] | None = None


def read_wishes(header: ReadHeader, max_timeout_s: float) -> Wishes:
    """Check the headers of a request for text. Raises RequestError naming the header."""
    key = header(b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise invalid(f"{IDEMPOTENCY_KEY} must be 1 to 255 visible ASCII characters.", IDEMPOTENCY_KEY)
    resumable = header(b"x-tokenbus-resumable")
    if resumable not in (None, "0", "1"):
        raise invalid(f"{RESUMABLE} must be 1 or 0.", RESUMABLE)
    positions = read_positions(header)
    if positions is not None and key is None:
        raise invalid(
            f"{LAST_EVENT_ID} continues a request that is known by its {IDEMPOTENCY_KEY}; without one, "
            "GET /v1/requests/{id}/stream continues it.",
            LAST_EVENT_ID,
        )
    return Wishes(
        key=key or "",
        keep_s=KEEP_S if key is not None or resumable == "1" else 0.0,
        timeout_s=_timeout_s(header(b"x-request-timeout"), max_timeout_s),
        positions=positions,
    )


def _timeout_s(text: str | None, max_timeout_s: float) -> float | None:
    if text is None:
        return None
    timeout_s = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < timeout_s <= max_timeout_s:
        raise invalid(f"{TIMEOUT} must be a number of seconds above 0 up to {max_timeout_s:g}.", TIMEOUT)
    return timeout_s


def read_positions(header: ReadHeader) -> tuple[int, ...] | None:
    """Last-Event-ID: the positions of all choices, such as 12-9-10; None without the header. Raises RequestError."""
    text = header(b"last-event-id")
    if text is None:
        return None
    positions = tuple(int(part) for part in text.split("-")) if _POSITIONS.fullmatch(text) else ()
    if not positions or max(positions) > MAX_POSITION:
        raise invalid(f"{LAST_EVENT_ID} must be the id of an event, such as 12 or 12-9-10.", LAST_EVENT_ID)
    return positions


def check_num_positions(positions: tuple[int, ...], num_choices: int) -> None:
    """RequestError unless there is one for each choice."""
    if len(positions) != num_choices:
        raise invalid(
            f"{LAST_EVENT_ID} has {len(positions)} positions, but the request has {num_choices} choices.", LAST_EVENT_ID
        )


def keyed_request_id(authorization: str, key: str) -> str:
    """The request id that belongs to an idempotency key: the same on every gateway, and different for each holder of
    an API key."""
    parts = ("idempotency", authorization, key)
    return hashlib.sha256("\0".join(parts).encode("latin-1")).hexdigest()[:32]


def id_in_path(text: str) -> str:
    """The request id of a path, with or without OpenAI's prefix. RequestError 404 for what cannot be one."""
    found = _PATH_ID.fullmatch(text)
    if found is None:
        raise request_not_found()
    return found[1]


def request_not_found() -> RequestError:
    """404: no log knows it."""
    return RequestError("There is no such request.", "request_id", "request_not_found", 404)
