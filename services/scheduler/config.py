"""Options of the scheduler."""

from typing import Annotated

import msgspec

from shared.queue_options import QueueOptions


class SchedulerConfig(QueueOptions, kw_only=True, frozen=True):
    """Limits of a step (max_num_seqs, max_num_batched_tokens, ...) are the workers' and come with their heartbeats."""

    watermark: Annotated[
        float, msgspec.Meta(description="share of the KV blocks kept free when a sequence is admitted", ge=0.0, lt=1.0)
    ] = 0.01
    prefill_share: Annotated[
        float,
        msgspec.Meta(
            description="share of max_num_batched_tokens that prompts may take in a step that also continues streams",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.5
    snapshot_interval_s: Annotated[
        float, msgspec.Meta(description="seconds between snapshots of the log's state", gt=0)
    ] = 30.0
    log_retention_s: Annotated[
        float, msgspec.Meta(description="seconds of the log that are kept although a snapshot holds them", ge=0)
    ] = 900.0
    log_max_bytes: Annotated[
        int, msgspec.Meta(description="size of the log in bytes beyond which it refuses appends", ge=1024 * 1024)
    ] = 4 * 1024**3
    nats_replicas: Annotated[
        int,
        msgspec.Meta(description="servers of a NATS cluster that each store the log and its snapshots", ge=1, le=5),
    ] = 1
    test_drop_plans: Annotated[
        float, msgspec.Meta(description="share of the plans that are not sent", ge=0.0, lt=1.0)
    ] = 0.0
    fencing: Annotated[
        bool, msgspec.Meta(description="count a worker's rows only under its own epoch; for tests: off breaks streams")
    ] = True
