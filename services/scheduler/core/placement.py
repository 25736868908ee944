"""Which worker a waiting sequence is bound to, and when.

Binding is late: a sequence waits in one queue for all workers of its model until the next step of one of them has
tokens, a seat and blocks for it. Then the worker with the smallest cost gets it, where

    cost(worker) =   tokens of the sequence that are not in the worker's prefix cache    its own work there
                   + tokens that the worker's sequences have yet to compute              the work before it
                   + block_size * sequences that run there                               the steps it will share

is in tokens: a prefix hit of 1,000 tokens is worth waiting behind 1,000 tokens of other prompts, not more. If the
cheapest worker has no room in its next step, the sequence waits for it and others may pass. What waits like this is
pledged, that is, counted as work before those that follow, so that a crowd with one prefix does not queue for one
worker while the others stand idle.
"""

from collections.abc import Collection
from dataclasses import dataclass

from services.scheduler.core.backlog import Backlog
from services.scheduler.core.sequence import Sequence
from services.scheduler.core.waiting import WaitingQueue
from services.scheduler.core.worker_state import WorkerState


@dataclass(slots=True)
class _Offer:
    """A worker that has a seat and blocks for a sequence. hits: blocks of it that the worker holds already;
    num_swapped: how many of those that follow lie in its swap space."""

    worker: WorkerState
    hits: list[int]
    num_swapped: int
    num_blocks: int
    num_spare: int
    cost: int


class Placement:
    """Binds waiting sequences of one model to its workers.

    watermark: share of a worker's blocks that must stay free beside a new sequence's own, unless nothing else runs.
    backlog: is told what begins.
    """

    def __init__(self, watermark: float, backlog: Backlog) -> None:
        self.watermark = watermark
        self._backlog = backlog
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def bind_waiting(self, waiting: WaitingQueue, workers: Collection[WorkerState]) -> None:
        """Bind sequences in order while the next step of a worker has room. Cost: O(workers) if none has.

        A sequence that finds blocks nowhere closes its workers to all after it: first come, first served.
        """
        open_workers = {worker.name for worker in workers if worker.has_room_in_step}
        if not open_workers or not waiting:
            return
        pledged = dict.fromkeys((worker.name for worker in workers), 0)
        for sequence in waiting.snapshot():
            allowed = [worker for worker in allowed_workers(sequence, workers) if worker.num_free_seats > 0]
            if not any(worker.name in open_workers for worker in allowed):
                continue
            offers = [offer for worker in allowed if (offer := self._offer(sequence, worker)) is not None]
            if not offers:
                open_workers.difference_update(worker.name for worker in allowed)
            else:
                best = min(offers, key=lambda offer: (offer.cost + pledged[offer.worker.name], offer.worker.name))
                if best.worker.name in open_workers:
                    self._bind(sequence, best, waiting)
                    if not best.worker.has_room_in_step:
                        open_workers.discard(best.worker.name)
                else:
                    hit_tokens = (len(best.hits) + best.num_swapped) * best.worker.block_size
                    pledged[best.worker.name] += sequence.num_tokens - hit_tokens + best.worker.block_size
            if not open_workers:
                return

    def _offer(self, sequence: Sequence, worker: WorkerState) -> _Offer | None:
        """What the worker could do for the sequence now; None if its blocks do not suffice."""
        hits: list[int] = []
        num_swapped = 0
        block_size = worker.block_size
        if worker.blocks.enable_prefix_caching:
            # the last token is always computed, since its logits are what is asked for
            max_hits = (sequence.num_tokens - 1) // block_size
            names = sequence.hash_blocks(block_size, sequence.num_tokens)
            hits = worker.blocks.find_hits(names, max_hits)
            num_swapped = worker.swap.find_hits(names, len(hits), max_hits)
        num_blocks = worker.capacity.num_blocks_for(sequence.num_tokens)
        num_spare = int(self.watermark * worker.blocks.num_blocks) if worker.running else 0
        if not worker.blocks.can_allocate(hits, num_blocks, num_spare):
            return None
        num_uncached_tokens = sequence.num_tokens - (len(hits) + num_swapped) * block_size
        cost = num_uncached_tokens + worker.num_uncomputed_tokens + block_size * len(worker.running)
        return _Offer(worker, hits, num_swapped, num_blocks, num_spare, cost)

    def _bind(self, sequence: Sequence, offer: _Offer, waiting: WaitingQueue) -> None:
        worker = offer.worker
        table = worker.blocks.allocate(offer.hits, offer.num_blocks, offer.num_spare)
        assert table is not None, "an offer stands until the next allocation"
        waiting.remove(sequence)
        self._backlog.begin(sequence.state.request)
        worker.bind(sequence, len(offer.hits), offer.num_swapped, table)
        if worker.blocks.enable_prefix_caching:
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += len(offer.hits) * worker.block_size


def allowed_workers(sequence: Sequence, workers: Collection[WorkerState]) -> list[WorkerState]:
    """Workers that may run the sequence at all, with or without room at the moment.

    A draining worker takes nothing new; but if none that can run the sequence accepts, it takes back what it had to
    preempt, so that its sequences finish there. A worker runs one suspect at a time (rule 20).
    """
    able = [worker for worker in workers if worker.capacity.can_go_on(sequence)]
    allowed = [worker for worker in able if worker.accepting]
    if not allowed:
        allowed = [worker for worker in able if worker.name == sequence.last_worker]
    return [worker for worker in allowed if worker.suspect is None or not sequence.suspect]
