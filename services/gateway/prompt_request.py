"""The request of one prompt on its way: sent, read, paused, cancelled."""

import asyncio

from services.gateway.pipeline import Pipeline
from shared.errors import RequestError
from shared.messages.pipeline import Accepted, GenerateRequest
from shared.reading.stream import OnDelta, Stream
from shared.reading.submission import submit

# A detokenizer tells the reader of a request that it has not folded within 5 s that there is none.
EARLY_ATTACH_S = 3.0


class PromptRequest:
    """One GenerateRequest with its stream of text."""

    def __init__(self, pipeline: Pipeline, request: GenerateRequest, num_choices: int, on_delta: OnDelta) -> None:
        self._pipeline = pipeline
        self._request = request
        self._stream = Stream(request.request_id or "", pipeline.shard, num_choices, on_delta)
        self._may_run = False

    async def start(self) -> Accepted:
        """Send it until it is accepted. Raises RequestError.

        The attach leaves at the same time, for the shard that the request most likely goes to: the first tokens may
        be there before the acceptance is.
        """
        hub, stream = self._pipeline.hub, self._stream
        self._may_run = True
        hub.attach(stream)
        too_early = asyncio.get_running_loop().call_later(EARLY_ATTACH_S, hub.detach, stream)
        try:
            accepted = await submit(self._pipeline.bus, self._request)
        except RequestError as error:
            self._may_run = error.status >= 500
            raise
        finally:
            too_early.cancel()
        if accepted.shard != stream.shard:
            hub.detach(stream)
            await hub.follow(accepted.shard)
            stream.shard = accepted.shard
        if not stream.number:
            hub.attach(stream)
        return accepted

    def pause(self) -> None:
        """The client reads too slowly: its text stays with the detokenizers (rule 15)."""
        self._pipeline.hub.detach(self._stream)

    def resume(self) -> None:
        """Read on from where pause came."""
        self._pipeline.hub.attach(self._stream)

    def abandon(self) -> None:
        """Read no more, and cancel it in the log unless it has ended or was refused."""
        if self._stream.is_done:
            return
        self._pipeline.hub.detach(self._stream)
        if self._may_run:
            self._may_run = False
            self._pipeline.cancel(self._stream.request_id, self._stream.shard)
