"""How many prompt tokens go into a step that also continues streams."""

from tests.scheduler.asked import scheduled, submit
from tests.scheduler.simulated_shard import SimulatedShard


def test_prompts_take_no_more_than_their_share_beside_streams() -> None:
    shard = SimulatedShard(prefill_share=0.5)
    shard.join("w", num_blocks=256, max_num_batched_tokens=32)
    first, second = (submit(shard, [100 + number] * 30) for number in range(2))
    assert scheduled(shard.schedule("w")) == {first.id: 30, second.id: 2}, "nothing streams yet"
    third = submit(shard, [102] * 60)
    assert scheduled(shard.schedule("w")) == {first.id: 1, second.id: 16}, "many wait: the whole share"
    shard.run()
    assert len(third.tokens) == 8
    shard.check()


def test_a_lone_prompt_is_spread_over_some_steps_beside_streams() -> None:
    shard = SimulatedShard(prefill_share=0.5)
    shard.join("w", num_blocks=1024, max_num_batched_tokens=1024, max_model_len=2048)
    submit(shard, [100] * 8, 60)
    shard.turn()
    prompt = submit(shard, [101] * 1000)
    sizes = []
    while not prompt.tokens:
        plan = shard.schedule("w")
        if plan is None:
            shard.turn()
        elif prompt.id in scheduled(plan):
            sizes.append(scheduled(plan)[prompt.id])
    assert sizes[:7] == [250, 187, 140, 128, 128, 128, 39], "a quarter of what is left, and of the share at least"


def test_prompts_go_on_beside_streams_however_small_their_share() -> None:
    shard = SimulatedShard(prefill_share=0.01)
    shard.join("w", num_blocks=64, max_num_batched_tokens=8)
    first, second = (submit(shard, [100 + number] * 12, 30) for number in range(2))
    shard.run()
    assert (len(first.tokens), len(second.tokens)) == (30, 30)
