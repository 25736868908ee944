"""A request with an idempotency key: sent if nobody has sent it yet, and read like any other that is in the log."""

import asyncio

from services.gateway.core.origin import read_origin
from services.gateway.core.preparation import Prepared
from services.gateway.core.request_headers import IDEMPOTENCY_KEY
from services.gateway.finding import FoundRequest, found, look
from services.gateway.pipeline import Pipeline
from shared.errors import RequestError
from shared.messages.control import Described
from shared.messages.pipeline import GenerateRequest
from shared.reading.submission import submit

WAIT_S = 1.0


class KeyedRequest:
    """One HTTP request with a key. was_sent: whether this call sent any part of it.

    Its id follows from the key, so gateways that are asked at the same time send the same request, and the log takes
    it once. All of them then read what stands in the log, the one that sent it too.
    """

    def __init__(self, pipeline: Pipeline, prepared: Prepared, *, may_send: bool) -> None:
        self._pipeline = pipeline
        self._prepared = prepared
        self._may_send = may_send
        self.was_sent = False

    async def find_or_send(self, refusal: RequestError | None) -> FoundRequest:
        """The request as logged. refusal: why none can be sent now, None if it can.

        Raises RequestError: 422 where the key belongs to another body, 409 where its request is no longer kept, 404
        where it is not there and must not be sent, and whatever sending raises.
        """
        first, *others = self._prepared.requests
        described = [await self._find_or_send(first, refusal)]
        origin = read_origin(described[0])
        if origin.fingerprint != self._prepared.fingerprint:
            raise RequestError(
                f"The {IDEMPOTENCY_KEY} belongs to a request with another body.",
                IDEMPOTENCY_KEY,
                "idempotency_key_reused",
                422,
            )
        described += await asyncio.gather(*(self._find_or_send(each, refusal) for each in others))
        return FoundRequest(first.request_id or "", origin, described)

    async def _find_or_send(self, request: GenerateRequest, refusal: RequestError | None) -> Described:
        request_id = request.request_id or ""
        with_prompt = self._prepared.params.return_token_ids
        described = await look(self._pipeline, request_id, with_prompt=with_prompt)
        if not described.found and not described.forgotten and self._may_send:
            if refusal is not None:
                raise refusal
            await self._send(request)
            described = await look(self._pipeline, request_id, wait_s=WAIT_S, with_prompt=with_prompt)
        if described.forgotten:
            message = f"The request of this {IDEMPOTENCY_KEY} has ended, and its answer is no longer kept."
            raise RequestError(message, IDEMPOTENCY_KEY, "idempotency_key_expired", 409)
        return found(described)

    async def _send(self, request: GenerateRequest) -> None:
        """Send it to the end, even if the client goes meanwhile: it may come back for the answer."""
        self.was_sent = True
        pipeline, request_id = self._pipeline, request.request_id or ""
        sending = pipeline.spawn(submit(pipeline.bus, request))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(lambda _: pipeline.presence.disown(request_id, pipeline.shard))
            raise
        except RequestError as error:
            if error.status >= 500:  # it may have been accepted all the same
                pipeline.presence.disown(request_id, pipeline.shard)
            raise
