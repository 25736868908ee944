"""What a scheduler is told in measurements without a bus: a worker that is ready, and requests."""

from shared.messages.control import WorkerHeartbeat
from shared.messages.pipeline import Request
from shared.messages.sampling import Sampling


def ready_worker(
    worker: str,
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    enable_prefix_caching: bool = True,
) -> WorkerHeartbeat:
    """Of epoch 0, before its first plan."""
    return WorkerHeartbeat(
        worker=worker,
        epoch=0,
        next_plan=1,
        started=0,
        finished=0,
        idle=True,
        leaving=False,
        model="m",
        model_version="1",
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
    )


def endless_request(number: int, prompt_token_ids: bytes, sampling: Sampling) -> Request:
    """Without a deadline that would ever come. prompt_token_ids: packed; number: any that no other request has."""
    return Request(
        request_id=f"{number:032x}",
        model="m",
        model_version="1",
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
        deadline_ns=1 << 62,
    )
