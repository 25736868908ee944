"""The scheduler as a state machine: any order of requests, steps, ends, fences, joins and leaves."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core.sequence import Status
from tests.scheduler.simulated_shard import SimulatedShard

PREFIXES = [[], [100] * 4, [100] * 8 + [101] * 3, list(range(200, 216))]
PROMPTS = st.builds(list.__add__, st.sampled_from(PREFIXES), st.lists(st.integers(100, 103), min_size=1, max_size=6))
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "max_tokens": st.integers(1, 14),
        "priority": st.integers(0, 1),
        "salt": st.sampled_from(["", "", "other"]),
        "n": st.sampled_from([1, 1, 1, 3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.0]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Tiny blocks and few of them, so that hits, evictions and preemptions meet each other all the time. Workers differ
    in what they can run at all."""

    @initialize(
        seed=st.integers(0, 2**16),
        num_blocks=st.integers(4, 16),
        budget=st.sampled_from([4, 8, 16]),
        max_num_seqs=st.sampled_from([2, 8]),
        caching=st.booleans(),
        watermark=st.sampled_from([0.0, 0.2]),
    )
    def begin(
        self, seed: int, num_blocks: int, budget: int, max_num_seqs: int, caching: bool, watermark: float
    ) -> None:
        self.shard = SimulatedShard(seed=seed, watermark=watermark)
        self.limits = {
            "num_blocks": num_blocks,
            "max_num_batched_tokens": budget,
            "max_num_seqs": max_num_seqs,
            "enable_prefix_caching": caching,
        }
        self.num_joined = 0
        self.join()

    def pick(self, index: int) -> str:
        names = sorted(self.shard.workers)
        return names[index % len(names)]

    def join(self, more_blocks: int = 0, max_model_len: int = 26) -> None:
        self.num_joined += 1
        limits = self.limits | {"num_blocks": self.limits["num_blocks"] + more_blocks, "max_model_len": max_model_len}
        self.shard.join(f"w{self.num_joined}", **limits)

    @precondition(lambda self: len(self.shard.live) < 12)
    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def submit(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self.shard.submit(**request)

    @precondition(lambda self: self.shard.workers)
    @rule(index=st.integers(0, 2))
    def schedule(self, index: int) -> None:
        self.shard.schedule(self.pick(index))

    @precondition(lambda self: self.shard.workers)
    @rule(index=st.integers(0, 2))
    def execute(self, index: int) -> None:
        self.shard.execute(self.pick(index))

    @precondition(lambda self: self.shard.workers)
    @rule(index=st.integers(0, 2))
    def fold_frame(self, index: int) -> None:
        self.shard.fold_frame(self.pick(index))

    @rule(num_turns=st.integers(1, 6))
    def turns(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.shard.turn()

    @precondition(lambda self: self.shard.live)
    @rule(index=st.integers(0, 50), back=st.integers(0, 2))
    def end(self, index: int, back: int) -> None:
        state = self.shard.live[index % len(self.shard.live)]
        if back:
            self.shard.end(state, "stop_string", max(0, len(state.tokens) - back))
        else:
            self.shard.end(state, "cancel")

    @rule(
        kind=st.sampled_from(["fence", "death", "death", "take_over", "join", "leave", "stay", "lose_row"]),
        index=st.integers(0, 2),
        victim=st.integers(0, 50),
        more_blocks=st.sampled_from([0, 0, 3]),
        max_model_len=st.sampled_from([26, 26, 18]),
    )
    def disturb(self, kind: str, index: int, victim: int, more_blocks: int, max_model_len: int) -> None:
        shard = self.shard
        if kind == "take_over":
            shard.take_over()
        elif len(shard.workers) < (3 if kind == "join" else 1):
            self.join(more_blocks, max_model_len)
        elif kind in ("fence", "death"):
            shard.fence(self.pick(index), died=kind == "death")
        elif kind in ("leave", "stay"):
            shard.scheduler.set_accepting(self.pick(index), kind == "stay")
        elif kind == "lose_row" and shard.live:
            shard.workers[self.pick(index)].withhold.add(shard.live[victim % len(shard.live)].id)

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "shard"):
            self.shard.check()

    @invariant()
    def counts_what_waits_for_its_first_step(self) -> None:
        if not hasattr(self, "shard"):
            return
        scheduler, begun = self.shard.scheduler, self.shard.begun
        known = scheduler._sequences.values()
        # what is bound has begun, though its first step may not be planned yet
        begun |= {sequence.state.request.request_id for sequence in known if sequence.last_worker}
        requests = {state.request.request_id: state.request for state in self.shard.live}
        waiting = [request for request_id, request in requests.items() if request_id not in begun]
        assert scheduler.backlog.num_requests == len(waiting)
        assert scheduler.backlog.num_tokens == sum(len(request.prompt_token_ids) // 4 for request in waiting)
        assert scheduler.num_waiting_tokens == sum(each.num_tokens for each in known if each.status is Status.WAITING)

    def teardown(self) -> None:
        """Whatever happened, everything comes to its end."""
        if not hasattr(self, "shard"):
            return
        shard = self.shard
        self.join()
        for name in shard.workers:
            shard.scheduler.set_accepting(name, True)
        shard.run()
        shard.check()
        assert shard.scheduler.num_running == shard.scheduler.num_waiting == 0
        for worker in shard.scheduler.workers.values():
            assert worker.blocks.num_held_blocks == 0


SchedulerMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSchedulerMachine = SchedulerMachine.TestCase
