"""Protocol rule 17: a plan carries only what its step needs, and a large one travels in parts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.codec import WireError, decoder, encode
from shared.messages.packed import INT32, UINT64, pack, unpack_tokens
from shared.messages.pipeline import NewSequence, StepPlan
from shared.messages.plan_parts import join_plans, split_plan
from tests.scheduler.simulated_shard import SimulatedShard
from tests.scheduler.simulated_worker import sampling

MAX_BYTES = 512 * 1024

new_sequences = st.lists(
    st.builds(
        lambda number, num_blocks, num_tokens: NewSequence(
            sequence=number,
            sampling=sampling(16, stop=("stop",)),
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            block_ids=pack(INT32, range(num_blocks)),
            history=pack(INT32, range(num_tokens)),
            cache_key="salt\0model\0version",
        ),
        st.integers(0, 2**64 - 1),
        st.integers(0, 400),
        st.integers(0, 900),
    ),
    max_size=6,
    unique_by=lambda new: new.sequence,
)


@given(
    new=new_sequences,
    num_sequences=st.integers(0, 300),
    num_token_ids=st.integers(0, 2000),
    max_bytes=st.integers(500, 4000),
)
@settings(deadline=None)
def test_rule_17_parts_stay_under_the_limit_and_join_to_the_same_plan(
    new: list[NewSequence], num_sequences: int, num_token_ids: int, max_bytes: int
) -> None:
    numbers = range(num_sequences)
    plan = StepPlan(
        epoch=2**40,
        step=2**31,
        new=new,
        sequences=pack(UINT64, numbers),
        start=pack(INT32, numbers),
        num_scheduled=pack(INT32, numbers),
        num_given=pack(INT32, numbers),
        position=pack(INT32, numbers),
        token_ids=pack(INT32, range(num_token_ids)),
        num_new_blocks=pack(INT32, numbers),
        new_blocks=pack(INT32, range(num_sequences // 2)),
        forget=pack(UINT64, range(num_sequences // 3)),
    )
    parts = split_plan(plan, max_bytes)
    sent = [encode(part) for part in parts]
    assert max(map(len, sent)) <= max_bytes
    assert len(parts) == 1 or sum(map(len, sent)) > max_bytes
    decode = decoder(StepPlan)
    assert join_plans(decode(data) for data in reversed(sent)) == plan


def test_rule_17_a_prompt_of_200k_tokens_passes() -> None:
    num_tokens = 200_000
    shard = SimulatedShard(block_size=16)
    worker = shard.join("w", num_blocks=13_000, max_num_batched_tokens=num_tokens, max_model_len=num_tokens + 8)
    shard.submit([100] * num_tokens, 4, presence_penalty=1.0)
    plan = shard.scheduler.schedule(worker.name)
    assert plan is not None
    assert len(plan.token_ids) == len(plan.new[0].history) == 4 * num_tokens
    parts = split_plan(plan, MAX_BYTES)
    assert 2 <= len(parts) <= 5
    assert all(len(encode(part)) <= MAX_BYTES for part in parts)
    assert join_plans(parts) == plan


def test_rule_17_full_state_of_256_sequences_passes() -> None:
    shard = SimulatedShard(block_size=16)
    worker = shard.join(
        "w", num_blocks=256 * 64 + 1, max_num_seqs=256, max_num_batched_tokens=256 * 1024, max_model_len=1024
    )
    for number in range(256):
        shard.submit([100 + number] * 1000, 4, presence_penalty=1.0)
    plan = shard.scheduler.schedule(worker.name)
    assert plan is not None and len(plan.new) == 256
    parts = split_plan(plan, MAX_BYTES)
    assert all(len(encode(part)) <= MAX_BYTES for part in parts)
    assert join_plans(parts) == plan


def test_rule_17_a_plan_carries_only_the_ids_of_its_step() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64, max_num_batched_tokens=16, max_model_len=256)
    shard.submit(list(range(100, 150)), 4, eos_token_ids=())
    carried = []
    while shard.live:
        plan = shard.schedule("w")
        if plan is not None:
            carried.append(len(plan.token_ids) // 4)
            assert len(unpack_tokens(plan.new_blocks)) <= 4
        shard.execute("w")
        shard.fold_frame("w")
    assert carried == [16, 16, 16, 2, 0, 0, 0], "prompt ids once, sampled ones never"


def test_a_limit_below_the_fixed_fields_is_an_error() -> None:
    new = NewSequence(sequence=1, sampling=sampling(1, stop=("x" * 500,)), num_prompt_tokens=1, num_tokens=1)
    plan = StepPlan(epoch=1, step=1, new=[new], token_ids=bytes(400))
    with pytest.raises(ValueError, match="sequence 1 takes"):
        split_plan(plan, 300)
    with pytest.raises(ValueError, match="too few"):
        split_plan(plan, 40)


def test_parts_of_different_plans_do_not_join() -> None:
    plan = StepPlan(epoch=1, step=1, token_ids=bytes(4000))
    parts = split_plan(plan, 500)
    other = split_plan(StepPlan(epoch=1, step=2, token_ids=bytes(4000)), 500)
    for wrong in ([], parts[:-1], [*parts, parts[0]], [*parts[:-1], other[-1]]):
        with pytest.raises(WireError):
            join_plans(wrong)
