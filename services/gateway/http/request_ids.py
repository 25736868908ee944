"""X-Request-Id: the client's own is echoed where it is harmless, else one is made up."""

import re
import secrets
from collections.abc import Iterable

ECHOED = re.compile(rb"[\x21-\x7e]{1,128}")


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that the answer to a request with these headers (names in lower case) carries."""
    for name, value in headers:
        if name == b"x-request-id" and ECHOED.fullmatch(value):
            return value.decode("ascii")
    return f"req-{secrets.token_hex(16)}"
