"""What the reasons of the log mean to a client."""

from shared.endings import FINISH_REASONS
from shared.errors import RequestError, server_error, timed_out
from shared.messages.pipeline import Delta, EndReason, ErrorBody

STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "permission_error": 403,
    "rate_limit_error": 429,
    "service_unavailable_error": 503,
}
RETRY_AFTER_S = 1.0


def failure(delta: Delta) -> RequestError | None:
    """The error that a delta ends its request with; None while all is well and for regular ends."""
    if delta.error is not None:
        return _from_body(delta.error, delta.end)
    if delta.end is None or delta.end in FINISH_REASONS:
        return None
    if delta.end == "deadline":
        return timed_out("The deadline of the request has passed.")
    if delta.end == "quarantined":
        return server_error("The request was given up after workers died while computing it.", "quarantined")
    return server_error("The request failed in the engine.", "engine_error")


def _from_body(error: ErrorBody, end: EndReason | None) -> RequestError:
    if end == "deadline":
        status = 504
    elif error.code == "request_not_found":
        status = 404
    else:
        status = STATUS_OF_TYPE.get(error.type, 500)
    retry_after_s = RETRY_AFTER_S if status in (429, 503) else None
    return RequestError(error.message, error.param, error.code, status, error.type, retry_after_s)
