"""From the bytes of a body to the JSON object in it, with every size bounded (bad inputs 1 to 6)."""

import zlib
from typing import Any

import msgspec

from shared.errors import RequestError, invalid, too_large

GZIP_WINDOW = 31
DEFLATE_WINDOW = 15
WINDOWS = {"gzip": GZIP_WINDOW, "x-gzip": GZIP_WINDOW, "deflate": DEFLATE_WINDOW}
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

_decode = msgspec.json.Decoder().decode


def check_content_type(content_type: str | None) -> None:
    """RequestError 415 unless the body is declared as JSON in UTF-8."""
    kind, _, parameters = (content_type or "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise RequestError("Content-Type must be application/json.", code="unsupported_media_type", status=415)


def decompress(data: bytes, content_encoding: str | None, max_bytes: int) -> bytes:
    """The body without its Content-Encoding (gzip, deflate or none), never unpacking more than max_bytes.

    RequestError: 415 for an unknown encoding, 413 beyond max_bytes, 400 for data that does not unpack.
    """
    encoding = (content_encoding or "identity").strip().lower()
    if encoding == "identity":
        return data
    window = WINDOWS.get(encoding)
    if window is None:
        raise RequestError("Content-Encoding must be gzip or deflate.", code="unsupported_encoding", status=415)
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(data, max_bytes + 1)
    except zlib.error:
        raise invalid(f"The body is not valid {encoding}.", None, "malformed_body") from None
    if len(plain) > max_bytes:
        raise too_large(f"A body may have at most {max_bytes} bytes unpacked.")
    if not inflater.eof or inflater.unused_data:
        raise invalid(f"The body is not valid {encoding}.", None, "malformed_body")
    return plain


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object in data. RequestError 400 for anything else."""
    if data.startswith(BYTE_ORDER_MARKS):
        raise invalid("The body must be JSON in UTF-8 without a byte order mark.", None, "malformed_json")
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise invalid(f"The body is not valid JSON: {error}", None, "malformed_json") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.", None, "malformed_json") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", None, "malformed_json")
    return value
