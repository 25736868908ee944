"""Continuous batching: who is scheduled when, where, and with how many tokens."""

from array import array

from shared.messages.packed import INT32, unpack
from tests.scheduler.asked import fill_unnoticed, scheduled, submit
from tests.scheduler.simulated_shard import SimulatedShard

PROMPT = list(range(100, 110))


def test_streams_go_on_while_a_long_prompt_prefills() -> None:
    """Inter-token latency in steps: p99 under two, and no step above the budget (asserted by the worker)."""
    shard = SimulatedShard(block_size=16, prefill_share=1.0)
    shard.join("w", num_blocks=1024, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=8300)
    streams = [submit(shard, [100 + number] * 20, 60) for number in range(16)]
    while not all(stream.tokens for stream in streams):
        shard.turn()
    long = submit(shard, list(range(100, 8292)), 4)
    gaps = []
    since = [0] * len(streams)
    num_turns = 0
    while not long.tokens:
        before = [len(stream.tokens) for stream in streams]
        shard.turn()
        num_turns += 1
        for index, stream in enumerate(streams):
            since[index] += 1
            if len(stream.tokens) > before[index]:
                gaps.append(since[index])
                since[index] = 0
    assert num_turns >= 8192 // 512
    assert sorted(gaps)[int(0.99 * len(gaps))] < 2
    assert len(gaps) >= len(streams) * (num_turns - 1)
    assert num_turns <= 8192 // (512 - len(streams)) + 8, "all that streams leave, but for the prompt's last part"


def test_budget_is_shared_by_order_and_the_last_one_is_cut() -> None:
    shard = SimulatedShard(prefill_share=1.0)
    shard.join("w", num_blocks=64, max_num_batched_tokens=16)
    first, second, third = (submit(shard, [100 + number] * 10) for number in range(3))
    assert scheduled(shard.schedule("w")) == {first.id: 10, second.id: 6}
    plan = shard.schedule("w")
    assert scheduled(plan) == {first.id: 1, second.id: 4, third.id: 10}
    assert plan is not None and list(unpack(INT32, plan.position)) == [1, 0, 0]
    shard.run()
    shard.check()


def test_a_plan_ahead_leaves_the_token_to_the_worker() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64)
    submit(shard, PROMPT)
    shard.schedule("w")
    plan = shard.schedule("w")
    assert plan is not None
    assert (list(unpack(INT32, plan.num_scheduled)), list(unpack(INT32, plan.num_given))) == ([1], [0])
    assert plan.token_ids == b"" and plan.new == []
    assert list(unpack(INT32, plan.start)) == [len(PROMPT)]
    assert shard.schedule("w") is None, "two plans are enough"


def test_priority_goes_before_arrival() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64, max_num_seqs=1)
    low, high, higher = (submit(shard, PROMPT, 2, priority=priority) for priority in (2, 1, -1))
    order = []
    while shard.live:
        order += [number for number in scheduled(shard.schedule("w")) if number not in order]
        shard.execute("w")
        shard.fold_frame("w")
    assert order == [higher.id, high.id, low.id]


def test_the_lowest_priority_latest_sequence_is_preempted_and_comes_back_first() -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("w", num_blocks=9, max_num_batched_tokens=64)
    urgent = submit(shard, [100] * 10, 15, priority=0)
    usual = [submit(shard, [101 + number] * 10, 15, priority=1) for number in range(2)]
    while not shard.scheduler.num_preemptions:
        shard.turn()
    later = submit(shard, [110] * 3, 4, priority=1)
    running = [sequence.id for sequence in shard.scheduler.workers["w"].running]
    assert running == [urgent.id, usual[0].id]
    seen: list[int] = []
    while shard.live:
        seen += [number for number in scheduled(shard.schedule("w")) if number not in (*running, *seen)]
        shard.execute("w")
        shard.fold_frame("w")
        shard.check()
    assert seen == [usual[1].id, later.id]


def test_a_prompt_that_loses_its_blocks_in_a_step_is_not_in_that_step() -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("w", num_blocks=8, max_num_batched_tokens=4)
    stream = submit(shard, [100] * 4, 20)
    shard.turn()
    long = submit(shard, [101] * 24, 2)
    while not shard.scheduler.num_preemptions:
        plan = shard.schedule("w")
        if plan is None:
            shard.execute("w")
            shard.fold_frame("w")
    assert set(scheduled(plan)) == {stream.id}
    shard.run()
    shard.check()
    assert len(long.tokens) == 2


def test_admission_leaves_the_watermark_free() -> None:
    shard = SimulatedShard(watermark=0.25)
    shard.join("w", num_blocks=12, max_num_batched_tokens=64)
    first = submit(shard, [100] * 20)
    second = submit(shard, [101] * 20, 4)
    assert set(scheduled(shard.schedule("w"))) == {first.id}, "5 + 5 blocks would leave less than 3"
    shard.run()
    shard.check()
    big = submit(shard, [102] * 44, 4)
    assert set(scheduled(shard.schedule("w"))) == {big.id}, "an idle worker takes what fits"
    assert len(second.tokens) == 4


def test_nobody_passes_a_sequence_that_waits_for_blocks() -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("w", num_blocks=12, max_num_batched_tokens=64)
    submit(shard, [100] * 28, 8)
    big = submit(shard, [101] * 28, 4)
    small = submit(shard, [102] * 4, 4)
    shard.turn()
    assert len(shard.scheduler.workers["w"].running) == 1
    while not small.tokens:
        shard.turn()
    assert big.tokens


def test_a_full_prefix_hit_still_computes_the_last_token() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64)
    submit(shard, [100] * 12, 2)
    shard.run()
    submit(shard, [100] * 12, 2)
    plan = shard.schedule("w")
    assert plan is not None and plan.new[0].num_cached_tokens == 8
    assert list(unpack(INT32, plan.num_scheduled)) == [4]
    assert (shard.scheduler.prefix_cache_queries, shard.scheduler.prefix_cache_hits) == (24, 8)


def test_another_salt_hits_nothing() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64)
    submit(shard, [100] * 12, 2, salt="a")
    shard.run()
    submit(shard, [100] * 12, 2, salt="b")
    plan = shard.schedule("w")
    assert plan is not None and plan.new[0].num_cached_tokens == 0


def test_without_prefix_caching_there_are_no_hits() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64, enable_prefix_caching=False)
    for _ in range(2):
        submit(shard, [100] * 12, 2)
        shard.run()
    assert shard.scheduler.prefix_cache_hits == shard.scheduler.prefix_cache_queries == 0


def test_history_travels_only_for_penalties() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64)
    submit(shard, PROMPT)
    submit(shard, PROMPT, repetition_penalty=1.5)
    plan = shard.schedule("w")
    assert plan is not None
    assert [new.history for new in plan.new] == [b"", array(INT32, PROMPT).tobytes()]


# ---- several workers ------------------------------------------------------------------------------------------------


def test_equal_workers_share_the_load() -> None:
    shard = SimulatedShard()
    shard.join("a", num_blocks=64)
    shard.join("b", num_blocks=64)
    for number in range(4):
        submit(shard, [100 + number] * 10)
    shard.turn()
    assert [len(worker.running) for worker in shard.scheduler.workers.values()] == [2, 2]


def test_a_prefix_hit_is_weighed_against_load() -> None:
    shard = SimulatedShard()
    shard.join("a", num_blocks=64, max_num_batched_tokens=64)
    submit(shard, [100] * 41, 1)
    shard.run()
    shard.join("b", num_blocks=64, max_num_batched_tokens=64)
    assert scheduled(shard.schedule("b")) == {}
    near = submit(shard, [100] * 41, 4)
    assert scheduled(shard.schedule("b")) == {}
    assert scheduled(shard.schedule("a")) == {near.id: 1}, "40 cached tokens outweigh one sequence"
    far = submit(shard, [100] * 5 + [101] * 5, 4)
    assert scheduled(shard.schedule("b")) == {far.id: 10}, "4 cached tokens do not outweigh 1 token and 1 sequence"


def test_binding_is_late_so_a_worker_that_joins_gets_what_waits() -> None:
    shard = SimulatedShard()
    shard.join("a", num_blocks=64, max_num_batched_tokens=16)
    states = [submit(shard, [100 + number] * 10) for number in range(8)]
    shard.schedule("a")
    assert shard.scheduler.num_waiting >= 6
    shard.join("b", num_blocks=64, max_num_batched_tokens=16)
    assert scheduled(shard.schedule("b"))
    shard.run()
    assert all(len(state.tokens) == 8 for state in states)
    assert min(worker.num_rows for worker in shard.workers.values()) >= 16


def test_a_crowd_with_one_prefix_does_not_wait_for_one_worker() -> None:
    shard = SimulatedShard()
    shard.join("a", num_blocks=64, max_num_batched_tokens=16)
    submit(shard, [100] * 24, 1)
    shard.run()
    shard.join("b", num_blocks=64, max_num_batched_tokens=16)
    for number in range(12):
        submit(shard, [100] * 24 + [101 + number] * 4, 4)
    shard.schedule("a")
    shard.schedule("a")
    assert scheduled(shard.schedule("b")), "its turn comes when the other one has enough"
    shard.run()
    shard.check()


def test_a_worker_gets_only_its_own_model() -> None:
    shard = SimulatedShard()
    worker = shard.join("w", num_blocks=64)
    foreign = type(worker.heartbeat())(**{**fields(worker.heartbeat()), "worker": "x", "model_version": "2"})
    shard.scheduler.add_worker(foreign, 1)
    state = submit(shard, PROMPT)
    assert shard.scheduler.schedule("x") is None
    assert set(scheduled(shard.schedule("w"))) == {state.id}


def fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}  # type: ignore[attr-defined]


def test_a_draining_worker_hands_over_what_others_have_seats_for() -> None:
    shard = SimulatedShard()
    shard.join("old", num_blocks=64)
    states = [submit(shard, [100 + number] * 4, 20) for number in range(4)]
    shard.turn()
    shard.join("new", num_blocks=64, max_num_seqs=3)
    shard.scheduler.set_accepting("old", False)
    for _ in range(4):
        shard.turn()
    sizes = {name: len(worker.running) for name, worker in shard.scheduler.workers.items()}
    assert sizes == {"old": 1, "new": 3}, "the one without a seat streams on where it is"
    late = submit(shard, PROMPT, 2)
    shard.run()
    shard.check()
    assert [len(state.tokens) for state in [*states, late]] == [20, 20, 20, 20, 2]
    assert shard.scheduler.num_moves == 4


def test_the_only_worker_finishes_its_sequences_while_it_drains() -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("w", num_blocks=6, max_num_batched_tokens=64)
    states = [submit(shard, [100 + number] * 8, 14) for number in range(2)]
    shard.turn()
    shard.scheduler.set_accepting("w", False)
    late = submit(shard, PROMPT, 2)
    while any(state.end is None for state in states):
        shard.turn()
        shard.check()
    assert shard.scheduler.num_preemptions > 0, "what it preempted itself it takes back"
    assert late.end is None and not late.tokens
    shard.join("next")
    shard.run()
    assert len(late.tokens) == 2


# ---- ends and figures -----------------------------------------------------------------------------------------------


def test_max_model_len_ends_a_sequence_by_length() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64, max_model_len=14)
    state = submit(shard, PROMPT, 100)
    shard.run()
    assert (state.end, state.reason) == (4, "length")
    assert [(verdict.sequence.id, verdict.reason) for verdict in shard.verdicts] == [(state.id, "length")]
    shard.check()


def test_max_model_len_reached_by_rows_in_flight_of_a_moved_sequence() -> None:
    shard = SimulatedShard()
    shard.join("old", num_blocks=64, max_model_len=12)
    state = submit(shard, PROMPT, 100)
    shard.schedule("old")
    shard.schedule("old")
    shard.join("new", num_blocks=64, max_model_len=12)
    shard.scheduler.set_accepting("old", False)
    shard.run()
    shard.check()
    assert (state.end, state.reason) == (2, "length")


def test_max_model_len_reached_before_a_take_over_is_found_by_the_next_leader() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64, max_model_len=14)
    state = submit(shard, PROMPT, 100)
    fill_unnoticed(shard, state, 4)
    shard.take_over()
    assert (state.end, state.reason) == (4, "length")


def test_a_lost_row_is_computed_again() -> None:
    shard = SimulatedShard()
    shard.join("w", num_blocks=64)
    state = submit(shard, PROMPT, 6)
    shard.turn()
    shard.workers["w"].withhold.add(state.id)
    shard.run()
    shard.check()
    assert len(state.tokens) == 6
    assert shard.scheduler.num_preemptions == 1


def test_unknown_names_change_nothing() -> None:
    shard = SimulatedShard()
    shard.join("w")
    state = submit(shard, PROMPT)
    scheduler = shard.scheduler
    scheduler.remove_worker("nobody", died=True)
    scheduler.set_accepting("nobody", False)
    scheduler.update("nobody", 1)
    scheduler.update("w", 7)
    scheduler.end(12345)
    assert scheduler.schedule("nobody") is None
    assert scheduler.add(state) is None, "known already"
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    shard.run()
    assert scheduler.add(state) is None, "ended already"
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.kv_cache_usage) == (0, 0, 0.0)


def test_figures() -> None:
    shard = SimulatedShard()
    assert shard.scheduler.kv_cache_usage == 0.0
    shard.join("w", num_blocks=10, max_num_seqs=1)
    submit(shard, [100] * 10)
    submit(shard, [101] * 7)
    shard.schedule("w")
    scheduler = shard.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_waiting_tokens) == (1, 1, 7)
    assert scheduler.kv_cache_usage == 0.3
