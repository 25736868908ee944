"""The scheduler's share of the protocol's rules, each test named after its rule."""

from shared.messages.packed import INT32, UINT64, unpack
from shared.messages.pipeline import RowError, Rows, StepPlan
from shared.sampling_seed import choice_seed
from tests.scheduler.asked import submit
from tests.scheduler.simulated_shard import SimulatedShard

PROMPT = list(range(100, 110))


def numbers(plan: StepPlan | None) -> list[int]:
    return [] if plan is None else list(unpack(UINT64, plan.sequences))


def shard_of(*names: str, **limits: int | bool) -> SimulatedShard:
    shard = SimulatedShard()
    for name in names:
        shard.join(name, **limits)
    return shard


def test_rule_01_a_sequence_moves_only_with_no_row_in_flight() -> None:
    shard = shard_of("old")
    state = submit(shard, PROMPT)
    shard.schedule("old")
    shard.schedule("old")
    shard.join("new")
    shard.scheduler.set_accepting("old", False)
    shard.execute("old")
    shard.execute("old")
    shard.fold_frame("old")
    assert shard.schedule("old") is None and shard.schedule("new") is None
    shard.fold_frame("old")
    plan = shard.schedule("new")
    assert numbers(plan) == [state.id] and plan is not None
    assert plan.new[0].num_tokens == len(PROMPT) + 2
    assert shard.scheduler.num_moves == 1
    shard.run()
    shard.check()


def test_rule_01_after_a_fence_it_continues_elsewhere_from_what_is_folded() -> None:
    shard = shard_of("a")
    state = submit(shard, PROMPT)
    shard.turn()
    shard.schedule("a")
    shard.execute("a")
    shard.join("b")
    shard.fence("a", died=False)
    shard.scheduler.set_accepting("a", False)
    plan = shard.schedule("b")
    assert plan is not None and plan.new[0].num_tokens == len(PROMPT) + 1
    assert list(unpack(INT32, plan.position)) == [len(state.tokens)] == [1]
    shard.run()
    shard.check()


def test_rule_05_steps_restart_at_one_in_each_epoch_with_full_state() -> None:
    shard = shard_of("w")
    submit(shard, PROMPT, 20)
    shard.turn()
    shard.turn()
    before = shard.scheduler.workers["w"].epoch
    shard.fence("w")
    plan = shard.schedule("w")
    assert plan is not None
    assert plan.epoch > before and plan.step == 1
    assert [new.sequence for new in plan.new] == numbers(plan)


def test_rule_08_no_plan_after_an_end_is_folded_holds_the_sequence() -> None:
    shard = shard_of("w")
    stays, goes = submit(shard, PROMPT), submit(shard, PROMPT)
    shard.turn()
    shard.schedule("w")
    shard.end(goes, "cancel")
    seen = []
    while shard.live:
        seen += numbers(shard.schedule("w"))
        shard.execute("w")
        shard.fold_frame("w")
    assert seen and set(seen) == {stays.id}
    assert shard.scheduler.num_overrun_rows == 2, "the planned rows are computed for nothing"
    assert shard.fold.counts["row_overrun"] == 2
    shard.check()


def test_rule_08_the_worker_is_told_to_forget_it() -> None:
    shard = shard_of("w")
    stays, goes = submit(shard, PROMPT), submit(shard, PROMPT)
    shard.turn()
    shard.end(goes, "cancel")
    shard.turn()
    shard.turn()
    assert set(shard.workers["w"].loaded) == {stays.id}


def test_rule_08_blocks_freed_at_the_fold_are_used_by_later_plans() -> None:
    shard = shard_of("w", num_blocks=4, enable_prefix_caching=False)
    first = submit(shard, PROMPT, 6)
    shard.schedule("w")
    shard.schedule("w")
    shard.end(first, "cancel")
    assert shard.scheduler.kv_cache_usage == 0.0
    second = submit(shard, PROMPT, 6)
    shard.execute("w")
    shard.fold_frame("w")
    plan = shard.schedule("w")
    assert numbers(plan) == [second.id] and plan is not None
    assert set(unpack(INT32, plan.new_blocks)) <= {0, 1, 2, 3}
    assert shard.outstanding["w"], "while a row that writes into them is in flight"
    shard.run()
    shard.check()


def test_rule_08_length_is_known_ahead_and_never_overrun() -> None:
    shard = shard_of("w")
    state = submit(shard, PROMPT, 3)
    shard.run()
    assert (state.end, state.reason) == (3, "length")
    assert shard.workers["w"].num_rows == 3
    assert shard.scheduler.num_overrun_rows == 0


def test_rule_09_a_preempted_sequence_waits_for_its_rows_in_flight() -> None:
    shard = shard_of("w", num_blocks=6, max_num_batched_tokens=32, enable_prefix_caching=False)
    first, last = submit(shard, PROMPT, 12), submit(shard, PROMPT, 12)
    while not shard.scheduler.num_preemptions:
        plan = shard.schedule("w")
        if plan is None:
            shard.execute("w")
            shard.fold_frame("w")
    assert last.id in shard.outstanding["w"][min(shard.outstanding["w"])]
    assert plan is not None and last.id in unpack(UINT64, plan.forget)
    assert shard.scheduler.num_waiting == 1
    in_flight = len(PROMPT) + len(last.tokens)
    shard.execute("w")
    shard.fold_frame("w")
    assert len(PROMPT) + len(last.tokens) == in_flight + 1, "its row in flight counts"
    shard.run()
    shard.check()
    assert len(first.tokens) == len(last.tokens) == 12


def test_rule_09_only_blocks_of_folded_tokens_are_shared() -> None:
    shard = shard_of("w", max_num_batched_tokens=64)
    first = submit(shard, PROMPT, 30)
    shard.schedule("w")
    blocks = shard.scheduler.workers["w"].blocks
    shard.execute("w")
    assert blocks.num_cached_contents == 0, "computed, but not folded"
    shard.fold_frame("w")
    assert blocks.num_cached_contents == len(PROMPT) // shard.block_size
    while len(first.tokens) < 6:
        shard.turn()
    planned = shard.scheduler.workers["w"].running.last.num_tokens
    assert planned > len(PROMPT) + len(first.tokens)
    assert blocks.num_cached_contents <= (len(PROMPT) + len(first.tokens)) // shard.block_size


def test_rule_10_kept_kv_over_a_take_over_is_a_prefix_cache_hit() -> None:
    shard = shard_of("w", num_blocks=32)
    state = submit(shard, PROMPT * 4, 20)
    while len(state.tokens) < 8:
        shard.turn()
    shard.take_over()
    computed_before = shard.workers["w"].num_computed_tokens
    plan = shard.schedule("w")
    assert plan is not None
    new = plan.new[0]
    assert new.num_cached_tokens == (new.num_tokens - 1) // shard.block_size * shard.block_size
    shard.execute("w")
    assert shard.workers["w"].num_computed_tokens - computed_before <= shard.block_size
    shard.run()
    shard.check()
    assert len(state.tokens) == 20


def test_rule_13_what_can_never_fit_is_refused_with_the_numbers() -> None:
    shard = shard_of("w", num_blocks=4, max_model_len=100)
    too_long = submit(shard, [100] * 100, 4)
    too_many_blocks = submit(shard, [100] * 10, 8)
    fits = submit(shard, [100] * 10, 7)
    assert "100" in shard.refused[too_long.id]
    assert "5 KV cache blocks of 4 tokens" in shard.refused[too_many_blocks.id]
    assert fits.id not in shard.refused
    shard.run()
    assert len(fits.tokens) == 7


def test_rule_13_without_a_worker_everything_waits_and_is_judged_later() -> None:
    shard = shard_of()
    state, fits = submit(shard, [100] * 100, 4), submit(shard, PROMPT)
    assert shard.scheduler.num_waiting == 2 and not shard.refused
    shard.join("w", max_model_len=50)
    assert [(verdict.sequence.id, verdict.reason) for verdict in shard.verdicts] == [(state.id, "rejected")]
    shard.run()
    assert len(fits.tokens) == 8


def test_rule_16_choices_are_sequences_that_share_their_prompt() -> None:
    shard = shard_of("w", num_blocks=64, max_num_batched_tokens=8)
    states = shard.submit(PROMPT, 6, n=3, eos_token_ids=())
    shard.run()
    shard.check()
    assert [len(state.tokens) for state in states] == [6, 6, 6]
    assert shard.scheduler.prefix_cache_hits >= 8


def test_rule_16_the_worker_is_told_each_choices_own_seed() -> None:
    shard = shard_of("w", num_blocks=64, max_num_batched_tokens=64)
    states = shard.submit(PROMPT, n=3, seed=7)
    plan = shard.schedule("w")
    assert plan is not None
    seeds = {new.sequence: new.sampling.seed for new in plan.new}
    assert seeds == {state.id: choice_seed(7, state.choice) for state in states}
    assert len(set(seeds.values())) == 3


def test_rule_20_sequences_of_a_dead_worker_run_alone_first() -> None:
    shard = shard_of("a")
    states = [submit(shard, [100 + number] * 5, 30) for number in range(3)]
    for _ in range(4):
        shard.turn()
    shard.schedule("a")
    shard.fence("a", died=True)
    bystander = submit(shard, PROMPT, 30)
    shard.join("b", num_blocks=64)
    alone: list[int] = []
    with_others: set[int] = set()
    while not {state.id for state in states} <= with_others:
        in_flight = list(shard.outstanding["b"].values())
        plan = shard.schedule("b")
        if plan is None:
            shard.execute("b")
            shard.fold_frame("b")
        elif len(numbers(plan)) == 1 and numbers(plan) != [bystander.id]:
            assert not in_flight, "nothing else is in flight with a solo step"
            alone += numbers(plan)
        else:
            assert all(bystander.id in step for step in in_flight), "nor is anything planned behind one"
            with_others.update(numbers(plan))
            assert with_others <= {*alone, bystander.id}
    assert alone == [state.id for state in states]
    shard.run()
    shard.check()
    assert all(len(state.tokens) == 30 for state in [*states, bystander])


def test_rule_20_a_suspect_that_ends_lets_the_next_one_run() -> None:
    shard = shard_of("a")
    first, second = submit(shard, [100] * 40, 9), submit(shard, [101] * 40, 9)
    shard.schedule("a")
    shard.schedule("a")
    shard.fence("a", died=True)
    shard.join("b", num_blocks=64)
    assert numbers(shard.schedule("b")) == [first.id]
    shard.end(first, "cancel")
    shard.run()
    shard.check()
    assert len(second.tokens) == 9


def test_rule_20_two_deaths_alone_are_quarantined_and_others_go_on() -> None:
    shard = shard_of()
    poison = submit(shard, [666] * 5, 30)
    others = [submit(shard, [100 + number] * 5, 6) for number in range(4)]
    deaths = 0
    while poison.end is None:
        name = f"w{deaths}"
        shard.join(name, num_blocks=64)
        while poison.id not in numbers(shard.schedule(name)):
            shard.execute(name)
            shard.fold_frame(name)
        shard.fence(name, died=True)
        deaths += 1
    assert deaths == 3, "once with others, twice alone"
    assert [(verdict.sequence.id, verdict.reason) for verdict in shard.verdicts] == [(poison.id, "quarantined")]
    shard.join("last", num_blocks=64)
    shard.run()
    shard.check()
    assert all(len(state.tokens) == 6 for state in others), "its batch-mates are not punished"


def test_rule_20_a_row_folded_alone_clears_the_suspicion() -> None:
    shard = shard_of("a")
    state = submit(shard, [100] * 20, 12)
    for attempt in range(4):
        shard.schedule(f"{'ab'[attempt % 2]}")
        shard.fence("ab"[attempt % 2], died=True)
        name = "ba"[attempt % 2]
        shard.join(name, max_num_batched_tokens=8)
        had = len(state.tokens)
        while len(state.tokens) == had:
            shard.turn()
    assert not shard.verdicts
    shard.run()
    assert len(state.tokens) == 12


def test_rule_20_a_suspect_may_be_preempted_before_its_turn() -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("a")
    suspect = submit(shard, [101] * 12, 4, priority=1)
    shard.schedule("a")
    shard.fence("a", died=True)
    shard.join("b", num_blocks=6, max_num_batched_tokens=64)
    urgent = submit(shard, [100] * 11, 12)
    assert numbers(shard.schedule("b")) == [suspect.id]
    shard.execute("b")
    shard.workers["b"].frames[0] = Rows(worker="b", epoch=shard.workers["b"].epoch, step=1)
    shard.fold_frame("b")
    while not urgent.tokens:
        shard.turn()
    shard.run()
    shard.check()
    assert (len(suspect.tokens), len(urgent.tokens)) == (4, 12)


def test_a_row_error_ends_only_its_sequence() -> None:
    shard = shard_of("w")
    fails, goes_on = submit(shard, PROMPT), submit(shard, list(reversed(PROMPT)))
    plan = shard.schedule("w")
    assert plan is not None
    shard.workers["w"].withhold.add(fails.id)
    shard.execute("w")
    frame = shard.workers["w"].frames.popleft()
    columns = {name: getattr(frame, name) for name in ("sequences", "positions", "tokens", "prefix_hashes")}
    error = RowError(sequence=fails.id, message="NaN logits")
    shard.workers["w"].frames.append(Rows(worker="w", epoch=frame.epoch, step=frame.step, errors=[error], **columns))
    shard.fold_frame("w")
    assert (fails.end, fails.reason) == (0, "error")
    shard.run()
    shard.check()
    assert len(goes_on.tokens) == 8
