"""Asking a simulated shard, and what of it a plan computes."""

from shared.log.state import SequenceState
from shared.messages.packed import INT32, UINT64, unpack
from shared.messages.pipeline import StepPlan
from tests.scheduler.simulated_shard import SimulatedShard


def scheduled(plan: StepPlan | None) -> dict[int, int]:
    """Sequence -> tokens computed of it."""
    if plan is None:
        return {}
    return dict(zip(unpack(UINT64, plan.sequences), unpack(INT32, plan.num_scheduled), strict=True))


def submit(shard: SimulatedShard, prompt: list[int], max_tokens: int = 8, **others: object) -> SequenceState:
    (state,) = shard.submit(prompt, max_tokens, eos_token_ids=(), **others)
    return state
