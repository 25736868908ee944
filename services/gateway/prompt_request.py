"""The request of one prompt on its way: sent, read, paused, cancelled or left."""

import asyncio

from services.gateway.pipeline import Pipeline
from shared.messages.pipeline import Accepted, GenerateRequest
from shared.reading.stream import OnDelta, Stream
from shared.reading.submission import NotStored, submit

# A detokenizer tells the reader of a request that it has not folded within 5 s that there is none.
EARLY_ATTACH_S = 3.0


class PromptRequest:
    """One GenerateRequest with its stream of text. It ends with its reader, unless it is kept (keep_s)."""

    def __init__(self, pipeline: Pipeline, request: GenerateRequest, num_choices: int, on_delta: OnDelta) -> None:
        self._pipeline = pipeline
        self._request = request
        self._stream = Stream(request.request_id or "", pipeline.shard, num_choices, on_delta)
        self._may_run = False
        self._is_kept = False

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
        except NotStored:
            self._may_run = False
            raise
        finally:
            too_early.cancel()
        if accepted.shard != stream.shard:
            hub.detach(stream)
            await hub.follow(accepted.shard)
            stream.shard = accepted.shard
        if not stream.number:
            hub.attach(stream)
        if self._request.keep_s:
            self._is_kept = True
            self._pipeline.presence.join(stream.request_id, stream.shard, is_owner=True)
        return accepted

    def pause(self) -> None:
        """The client reads too slowly: its text stays with the detokenizers (rule 15)."""
        self._pipeline.hub.detach(self._stream)

    def resume(self) -> None:
        """Read on from where pause came."""
        self._pipeline.hub.attach(self._stream)

    def abandon(self) -> None:
        """Read no more; call once. Unless it has ended or was refused, it is cancelled in the log, or left if kept.

        A kept one that was not accepted yet is cancelled too: its client has not learned its id.
        """
        stream = self._stream
        if not stream.is_done:
            self._pipeline.hub.detach(stream)
        if self._is_kept:
            self._pipeline.presence.leave(stream.request_id, is_done=stream.is_done)
        elif self._may_run and not stream.is_done:
            self._pipeline.cancel(stream.request_id, stream.shard)
