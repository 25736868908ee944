"""The request of one prompt that is in the log already, whoever sent it: read from any position, and left again."""

from collections.abc import Iterable

from services.gateway.pipeline import Pipeline
from shared.messages.control import Described
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Accepted
from shared.reading.stream import OnDelta, Stream


class JoinedPrompt:
    """A reader among others: leaving never ends the request, but a kept one goes on for a while only without any."""

    def __init__(
        self, pipeline: Pipeline, request_id: str, described: Described, positions: Iterable[int], on_delta: OnDelta
    ) -> None:
        self._pipeline = pipeline
        self._described = described
        self._stream = Stream(request_id, pipeline.shard, described.num_choices, on_delta, positions)
        self._has_joined = False

    async def start(self) -> Accepted:
        """Begin to read; tells what its acceptance told."""
        stream, described = self._stream, self._described
        if described.keep_s:
            is_owner = described.owner == self._pipeline.bus.name
            self._pipeline.presence.join(stream.request_id, stream.shard, is_owner=is_owner)
            self._has_joined = True
        self._pipeline.hub.attach(stream)
        prompt_token_ids = unpack_tokens(described.prompt_token_ids).tolist() if described.prompt_token_ids else None
        return Accepted(stream.request_id, described.num_prompt_tokens, stream.shard, prompt_token_ids)

    def pause(self) -> None:
        """The client reads too slowly: its text stays with the detokenizers (rule 15)."""
        self._pipeline.hub.detach(self._stream)

    def resume(self) -> None:
        """Read on from where pause came."""
        self._pipeline.hub.attach(self._stream)

    def abandon(self) -> None:
        """Read no more; call once."""
        if not self._stream.is_done:
            self._pipeline.hub.detach(self._stream)
        if self._has_joined:
            self._pipeline.presence.leave(self._stream.request_id, is_done=self._stream.is_done)
