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


def fill_unnoticed(shard: SimulatedShard, state: SequenceState, num_tokens: int) -> None:
    """Run the sequence until it is full with so many tokens, and keep the End that the scheduler decides from the log:
    as if its process ended before the append. Whatever it decides later is kept from the log as well."""
    take_verdicts = shard.scheduler.take_verdicts
    shard.scheduler.take_verdicts = list  # type: ignore[method-assign]
    while len(state.tokens) < num_tokens:
        shard.turn()
    assert [verdict.reason for verdict in take_verdicts()] == ["length"]
