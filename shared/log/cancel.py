"""The end that a client asks for, written the same way by everybody who takes a client's word."""

from shared.log.port import Log
from shared.messages.codec import encode
from shared.messages.pipeline import End

HORIZON_S = 60.0


async def append_cancel(log: Log, request_id: str, horizon_s: float = HORIZON_S) -> None:
    """End all choices of a request where they are folded; a second one for the same request is dropped by the log.

    Raises LogFull, and LogUnavailable after horizon_s (seconds).
    """
    await log.append("end", encode(End(request_id=request_id, reason="cancel")), f"cancel-{request_id}", horizon_s)
