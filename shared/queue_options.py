"""The limits of the queue as options of the services that judge by them."""

from typing import Annotated

import msgspec

from shared.config import ServiceConfig
from shared.queue_limits import QueueLimits


class QueueOptions(ServiceConfig, kw_only=True, frozen=True):
    """All services of a shard should be given the same ones."""

    max_num_queued_reqs: Annotated[
        int, msgspec.Meta(description="requests that may wait for their first step; more get 503", ge=1)
    ] = 4096
    max_num_queued_tokens: Annotated[
        int, msgspec.Meta(description="tokens of their prompts that may wait; 0: any number", ge=0)
    ] = 0

    @property
    def queue_limits(self) -> QueueLimits:
        """max_num_queued_reqs and max_num_queued_tokens."""
        return QueueLimits(max_num_reqs=self.max_num_queued_reqs, max_num_tokens=self.max_num_queued_tokens)
