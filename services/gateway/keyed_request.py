"""A request with an idempotency key: sent if nobody has sent it yet, and read like any other that is in the log."""

import asyncio
import functools

from services.gateway.core.origin import Origin, read_origin
from services.gateway.core.preparation import Prepared
from services.gateway.core.request_headers import IDEMPOTENCY_KEY
from services.gateway.finding import FoundRequest, found, look
from services.gateway.pipeline import Pipeline
from shared.errors import RequestError, unavailable
from shared.messages.control import Described
from shared.messages.pipeline import Accepted, GenerateRequest
from shared.reading.submission import NotStored, submit

WAIT_S = 1.0


class KeyedRequest:
    """One HTTP request with a key.

    Its id follows from the key, so gateways that are asked at the same time send the same request, and the log takes
    it once. All of them then read what stands in the log, the one that sent it too.
    """

    def __init__(self, pipeline: Pipeline, prepared: Prepared, *, may_send: bool) -> None:
        self._pipeline = pipeline
        self._prepared = prepared
        self._may_send = may_send
        self._sendings: dict[str, asyncio.Task[Accepted]] = {}

    @property
    def was_sent(self) -> bool:
        """Whether this call sent any part of it."""
        return bool(self._sendings)

    async def find_or_send(self, refusal: RequestError | None) -> FoundRequest:
        """The request as logged. refusal: why none can be sent now, None if it can.

        Raises RequestError: 422 where the key belongs to another body, 409 where its request is no longer kept, 404
        where it is not there and must not be sent, and whatever sending raises. What was sent by then is kept for a
        while like everything that nobody reads.
        """
        try:
            return await self._find_or_send_all(refusal)
        except BaseException:
            for request_id, sending in self._sendings.items():
                sending.add_done_callback(functools.partial(self._disown, request_id))
            raise

    async def _find_or_send_all(self, refusal: RequestError | None) -> FoundRequest:
        first, *others = self._prepared.requests
        described = await self._find_or_send(first, refusal)
        origin = read_origin(described)
        self._check_same(origin, described)
        answers = await asyncio.gather(*(self._find_or_send(each, refusal) for each in others), return_exceptions=True)
        prompts = [described]
        for answer in answers:  # all have come, so that none is sent behind the back of whoever handles the error
            if isinstance(answer, BaseException):
                raise answer
            prompts.append(answer)
        return FoundRequest(first.request_id or "", origin, prompts)

    def _check_same(self, origin: Origin, described: Described) -> None:
        if (origin.fingerprint, described.num_choices) != (self._prepared.fingerprint, self._prepared.shape.n):
            raise RequestError(
                f"The {IDEMPOTENCY_KEY} belongs to a request with another body.",
                IDEMPOTENCY_KEY,
                "idempotency_key_reused",
                422,
            )

    async def _find_or_send(self, request: GenerateRequest, refusal: RequestError | None) -> Described:
        request_id = request.request_id or ""
        with_prompt = self._prepared.params.return_token_ids
        described = await look(self._pipeline, request_id, with_prompt=with_prompt)
        if not described.found and not described.forgotten and self._may_send:
            if refusal is not None:
                raise refusal
            await self._send(request)
            described = await look(self._pipeline, request_id, wait_s=WAIT_S, with_prompt=with_prompt)
            if not described.found and not described.forgotten:
                raise unavailable(f"The request is not in the log yet; ask again with the same {IDEMPOTENCY_KEY}.")
        if described.forgotten:
            message = f"The request of this {IDEMPOTENCY_KEY} has ended, and its answer is no longer kept."
            raise RequestError(message, IDEMPOTENCY_KEY, "idempotency_key_expired", 409)
        return found(described)

    async def _send(self, request: GenerateRequest) -> None:
        """Send it to the end, even if the client goes meanwhile: it may come back for the answer."""
        sending = self._pipeline.spawn(submit(self._pipeline.bus, request))
        self._sendings[request.request_id or ""] = sending
        await asyncio.shield(sending)

    def _disown(self, request_id: str, sending: "asyncio.Task[Accepted]") -> None:
        """It was sent from here, and no reader followed; only what was refused for certain needs no word about it."""
        if sending.cancelled() or not isinstance(sending.exception(), NotStored):
            self._pipeline.presence.disown(request_id, self._pipeline.shard)
