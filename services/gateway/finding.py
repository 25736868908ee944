"""Requests that are in the log already: finding them, and reading them as their first client would."""

import asyncio
import functools
import time

from services.gateway.core.origin import Origin, derived_id, read_origin
from services.gateway.core.request_headers import request_not_found
from services.gateway.joined_prompt import JoinedPrompt
from services.gateway.pipeline import Pipeline
from shared.errors import RequestError
from shared.messages.control import Described
from shared.reading.description import describe

WAIT_S = 0.5
NS_PER_S = 1e9


class FoundRequest:
    """An HTTP request as logged: what is common to its prompts, and each prompt's own description, in order."""

    def __init__(self, request_id: str, origin: Origin, prompts: list[Described]) -> None:
        self.request_id = request_id
        self.origin = origin
        self.prompts = prompts

    @property
    def is_kept(self) -> bool:
        """Whether it goes on for a while without readers."""
        return self.prompts[0].keep_s > 0

    def left_s(self) -> float:
        """Seconds until its deadline, 0 when that has passed."""
        return max(0.0, self.prompts[0].deadline_ns / NS_PER_S - time.time())

    def openers(self, pipeline: Pipeline, positions: tuple[int, ...] | None) -> "list[functools.partial[JoinedPrompt]]":
        """For each prompt what reads it from its choices' positions on (None: from the start), as Generation wants
        it."""
        n = self.prompts[0].num_choices
        positions = positions or (0,) * (n * len(self.prompts))
        return [
            functools.partial(
                JoinedPrompt,
                pipeline,
                derived_id(self.request_id, index),
                described,
                positions[index * n : (index + 1) * n],
            )
            for index, described in enumerate(self.prompts)
        ]


async def find(pipeline: Pipeline, request_id: str, *, wait_s: float = WAIT_S) -> FoundRequest:
    """The request whose first prompt has this id, with all its prompts.

    wait_s: how long it may take to be folded. Raises RequestError 404 for what is not there, 410 for what has ended
    and is no longer kept, 503 when no detokenizer tells.
    """
    first = found(await look(pipeline, request_id, wait_s=wait_s))
    origin = read_origin(first)
    if origin.index:
        raise request_not_found()  # a later prompt: it is read with the first one
    if origin.return_token_ids:
        first = found(await look(pipeline, request_id, with_prompt=True))
    ids = [derived_id(request_id, index) for index in range(1, origin.num_prompts)]
    others = [look(pipeline, each, wait_s=WAIT_S, with_prompt=origin.return_token_ids) for each in ids]
    return FoundRequest(request_id, origin, [first, *map(found, await asyncio.gather(*others))])


async def look(pipeline: Pipeline, request_id: str, *, wait_s: float = 0.0, with_prompt: bool = False) -> Described:
    """What the log says of one prompt's request. RequestError 503 when no detokenizer tells."""
    return await describe(
        pipeline.bus, pipeline.hub, pipeline.shard, request_id, wait_s=wait_s, with_prompt=with_prompt
    )


def found(described: Described) -> Described:
    """The same. RequestError unless the log has the request and its text."""
    if described.forgotten:
        raise RequestError(
            "The request has ended, and its text is no longer kept.", "request_id", "request_forgotten", 410
        )
    if not described.found:
        raise request_not_found()
    return described
