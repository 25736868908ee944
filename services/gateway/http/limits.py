"""Bounds of one HTTP connection, and what is wrong with a request that exceeds them. Pure."""

import re

import msgspec

from shared.errors import RequestError, too_large

MAX_HOST_BYTES = 512
HOST = re.compile(rb"\[[0-9a-fA-F:.]+\](:[0-9]{0,5})?|[A-Za-z0-9._~%!$&'()*+,;=-]*(:[0-9]{0,5})?")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. header_timeout_s and body_timeout_s bound the arrival of a whole head and of a
    whole body; keep_alive_s bounds idleness; linger_s how long a refused client may go on sending unread."""

    max_header_bytes: int = 16 * 1024
    max_headers: int = 100
    max_target_bytes: int = 8 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    max_chunks: int = 16 * 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0


def head_too_large(limits: Limits) -> RequestError:
    """431: the head of the request exceeds a limit."""
    message = f"Headers may have at most {limits.max_header_bytes} bytes and {limits.max_headers} fields."
    return RequestError(message, code="headers_too_large", status=431)


def target_too_long(limits: Limits) -> RequestError:
    """414: the path and query exceed a limit."""
    return RequestError(
        f"The target may have at most {limits.max_target_bytes} bytes.", code="uri_too_long", status=414
    )


def body_too_large(limits: Limits) -> RequestError:
    """413: the body exceeds a limit, in bytes or in chunks."""
    return too_large(f"A body may have at most {limits.max_body_bytes} bytes in at most {limits.max_chunks} chunks.")


def too_slow() -> RequestError:
    """408: the request did not arrive in time."""
    return RequestError("The request did not arrive in time.", code="request_timeout", status=408)


def malformed() -> RequestError:
    """400: no HTTP."""
    return RequestError("The request is not valid HTTP/1.1.", code="malformed_request")


def check_head(headers: list[tuple[bytes, bytes]], http_version: str, limits: Limits) -> RequestError | None:
    """What is wrong with the headers (names in lower case) of a request, or None.

    Framing that two servers could read in two ways is refused: Content-Length beside Transfer-Encoding, two lengths.
    """
    hosts = [value for name, value in headers if name == b"host"]
    lengths = [value for name, value in headers if name == b"content-length"]
    is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        return RequestError("There must be exactly one Host header.", code="invalid_host")
    if hosts and (len(hosts[0]) > MAX_HOST_BYTES or not HOST.fullmatch(hosts[0])):
        return RequestError("The Host header is not a host name with an optional port.", code="invalid_host")
    if len(lengths) > 1 or (lengths and is_chunked) or (lengths and not lengths[0].isdigit()):
        return malformed()
    if lengths and (len(lengths[0]) > 18 or int(lengths[0]) > limits.max_body_bytes):
        return body_too_large(limits)
    return None
