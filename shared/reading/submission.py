"""Sending a request to the tokenizers until one accepts or refuses it (rule 12 of the protocol)."""

import asyncio
import secrets
import time
from collections.abc import Callable

import msgspec

from shared import subjects
from shared.bus.client import Bus
from shared.bus.errors import NoResponders, NotConnected, PayloadTooLarge
from shared.errors import RequestError, server_error, too_large, unavailable
from shared.messages.codec import WireError, decoder, encode
from shared.messages.pipeline import Accepted, GenerateRequest, Refused
from shared.refusals import BEFORE_STORING

RETRY_HORIZON_S = 60.0
ATTEMPT_TIMEOUT_S = 1.0
MAX_ATTEMPT_TIMEOUT_S = 8.0
NO_TOKENIZER_LIMIT_S = 5.0
WAIT_S = 0.05
MAX_WAIT_S = 0.5

_decode_reply: Callable[[bytes], Accepted | Refused] = decoder(Accepted | Refused)


class NotStored(RequestError):
    """A refusal of a request that this sending has certainly not put into the log."""


def new_request_id() -> str:
    """128 random bits in hex: the id of a request, and the capability to attach to it and to cancel it."""
    return secrets.token_hex(16)


def fix_defaults(request: GenerateRequest) -> GenerateRequest:
    """The request with everything set that a retry must not change: id, seed and time of creation."""
    return msgspec.structs.replace(
        request,
        request_id=request.request_id or new_request_id(),
        seed_default=request.seed_default if request.seed_default is not None else secrets.randbits(63),
        created_s=request.created_s if request.created_s is not None else time.time(),
    )


async def submit(bus: Bus, request: GenerateRequest) -> Accepted:
    """Send the same bytes again until a tokenizer answers.

    request must have been through fix_defaults. Raises RequestError: the tokenizer's refusal, 413 for a request that
    no message can carry, 503 when no tokenizer listens for NO_TOKENIZER_LIMIT_S or none answers within the deadline
    (at most RETRY_HORIZON_S). Unless the error is a NotStored the request may be in the log all the same, as when a
    tokenizer stored it and died, and the next one refuses it: cancel it then.
    """
    try:
        data = encode(request)
    except OverflowError:
        raise NotStored("The request holds an integer beyond 64 bits.") from None
    loop = asyncio.get_running_loop()
    until = loop.time() + min(RETRY_HORIZON_S, request.deadline_s)
    heard_at = loop.time()
    timeout_s, wait_s = ATTEMPT_TIMEOUT_S, WAIT_S
    refusal: type[RequestError] = NotStored
    while True:
        try:
            reply = await bus.request(subjects.INFER, data, min(timeout_s, max(0.05, until - loop.time())))
            return _accepted(reply, refusal)
        except PayloadTooLarge as error:
            message = f"The request has {error.size} bytes when packed; at most {error.limit} are accepted."
            raise refusal.from_refused(too_large(message).refused()) from error
        except TimeoutError:
            refusal = RequestError  # whatever the next attempt is told, this one may have been stored
            heard_at = loop.time()
            timeout_s = min(2 * timeout_s, MAX_ATTEMPT_TIMEOUT_S)
        except (NoResponders, NotConnected) as error:
            if isinstance(error, NotConnected):
                refusal = RequestError  # the connection may have broken with the request on its way
            if loop.time() - heard_at >= NO_TOKENIZER_LIMIT_S:
                absent = unavailable("No tokenizer is there to take the request; try again later.")
                raise refusal.from_refused(absent.refused()) from error
        if loop.time() >= until:
            raise unavailable("No tokenizer answered in time; try again later.")
        await asyncio.sleep(min(wait_s, max(0.0, until - loop.time())))
        wait_s = min(2 * wait_s, MAX_WAIT_S)


def _accepted(data: bytes, refusal: type[RequestError]) -> Accepted:
    """The acceptance in a reply. refusal: what a refusal is at best, given the attempts before."""
    try:
        reply = _decode_reply(data)
    except WireError as error:
        raise server_error("A tokenizer answered something that cannot be read.") from error
    if isinstance(reply, Refused):
        # what is wrong in itself (4xx) is found before it goes to the log, too
        was_not_sent_on = reply.status < 500 or reply.error.code in BEFORE_STORING
        raise (refusal if was_not_sent_on else RequestError).from_refused(reply)
    return reply
