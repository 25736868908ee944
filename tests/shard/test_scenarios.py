"""Single kinds of disaster, and that what is meant to happen in them happens."""

from collections.abc import Iterator

import pytest

from services.scheduler.core.lifetimes import GATEWAY_GONE, NOBODY_READS
from services.scheduler.leader import SUCCESSOR_S
from shared.log.state import RequestState
from shared.messages.control import Attach
from shared.messages.packed import unpack_tokens
from tests.shard.clockwork import START_NS
from tests.shard.invariants import problems
from tests.shard.scenario import Scenario
from tests.shard.shard import QUIET_FROM_S, Shard
from tests.shard.sim_worker import NOT_A_NUMBER, POISON

NUM_SEEDS = 8


def runs(scenario: Scenario, num_seeds: int = NUM_SEEDS) -> Iterator[Shard]:
    """Runs in which everything held."""
    for seed in range(num_seeds):
        shard = Shard(seed, scenario).run()
        found = problems(shard)
        assert not found, f"seed {seed}: {found}"
        yield shard


def requests(shard: Shard, *, with_token: int | None = None) -> list[RequestState]:
    return [
        state
        for state in shard.ledger.all_requests().values()
        if with_token is None or with_token in unpack_tokens(state.request.prompt_token_ids)
    ]


def reasons(shard: Shard, *, with_token: int | None = None) -> set[str | None]:
    return {sequence.reason for state in requests(shard, with_token=with_token) for sequence in state.sequences}


def test_i1_requests_of_a_dead_gateway_end_soon_unless_they_are_kept() -> None:
    """Within 2.5 s of the death or of the take-over after it (see invariants); kept ones are read on elsewhere."""
    ended = resumed = 0
    for shard in runs(Scenario(faults=("kill-gateway", "kill-gateway", "kill-scheduler"), step_s=0.15)):
        for state in requests(shard):
            ended += state.sequences[0].message == GATEWAY_GONE
        resumed += sum(
            client.has_all and client.is_kept and client.request.owner in shard.gateway_deaths
            for client in shard.clients
        )
    assert ended >= 8 and resumed >= 8


def test_i1_a_kept_request_that_nobody_reads_ends_when_its_time_is_over() -> None:
    scenario = Scenario(faults=("kill-gateway", "kill-detokenizer"), step_s=0.3, leaving=0.6, limit_s=150.0)
    given_up = 0
    for shard in runs(scenario, 6):
        given_up += sum(state.sequences[0].message == NOBODY_READS for state in requests(shard))
    assert given_up >= 3


def test_a_request_that_is_read_is_kept_although_the_leader_missed_its_gateway() -> None:
    """Heartbeats of one gateway do not reach the leader for longer than its patience, and the gateway cannot know."""
    scenario = Scenario(
        faults=("cut-edge",), num_faults=80, num_requests=8, asked_within_s=1.0, step_s=3.0, leaving=0.0, limit_s=200.0
    )
    missed = outlived = 0
    for shard in runs(scenario, 6):
        missed += sum(state.sequences[0].message == GATEWAY_GONE for state in requests(shard))
        for client in shard.clients:
            state = shard.ledger.all_requests()[client.request_id]
            if client.request.keep_s == 60.0:
                assert state.sequences[0].message != NOBODY_READS
                outlived += shard.ended_at[client.request_id] > 70.0
    assert missed and outlived


def test_i4_a_reader_whose_request_was_never_stored_is_soon_forgotten() -> None:
    """Its gateway attached, and died before the log had the request: at worst as the last fault ends."""
    attach = Attach(request_id="f" * 32, inbox="_INBOX.dead", number=1, positions=(0,))
    seen: list[int] = []
    for seed in range(NUM_SEEDS):
        shard = Shard(seed, Scenario(num_faults=0, num_requests=3, asked_within_s=1.0, leaving=0.0))
        for detokenizer in shard.detokenizers:
            shard.world.after(QUIET_FROM_S - 1.5, detokenizer.deliver, detokenizer.on_attach, attach)
            readers = detokenizer.desk.attachments
            shard.world.after(QUIET_FROM_S + 1.0, lambda readers: seen.append(len(readers)), readers)
        shard.world.after(QUIET_FROM_S - 1.0, shard.world.stall, 2.0)
        assert problems(shard.run()) == []
    assert seen == [1] * 2 * NUM_SEEDS


def test_rule_12_a_repeated_request_is_served_once() -> None:
    for shard in runs(Scenario(repeats=0.5, num_faults=2)):
        assert shard.ledger.counts["request_repeated"] >= 5


@pytest.mark.parametrize("max_records", [60, 400])
def test_rule_11_a_log_trimmed_all_the_time_loses_nothing(max_records: int) -> None:
    refused = 0
    for shard in runs(Scenario(max_records=max_records, num_faults=10)):
        assert shard.log.first_seq > 1
        refused += shard.log.num_refused
    assert (refused > 0) == (max_records == 60)


def test_rule_20_poison_is_given_up_after_two_deaths_alone_and_its_batch_mates_finish() -> None:
    for shard in runs(Scenario(num_faults=0, poison=0.08, leaving=0.0)):
        poison = [state for state in requests(shard, with_token=POISON) if state.request.deadline_ns > 10**18 + 10**11]
        assert {sequence.reason for state in poison for sequence in state.sequences} <= {"quarantined", "rejected"}
        others = {state.request.request_id for state in requests(shard)} - {s.request.request_id for s in poison}
        assert "quarantined" not in {
            sequence.reason
            for state in requests(shard)
            if state.request.request_id in others
            for sequence in state.sequences
            if POISON not in unpack_tokens(state.request.prompt_token_ids)
        }
        assert (shard.num_poisoned > 0) == bool(requests(shard, with_token=POISON))


def test_rows_that_are_no_numbers_fail_their_own_request_alone() -> None:
    for shard in runs(Scenario(num_faults=0, not_numbers=0.2, leaving=0.0)):
        assert reasons(shard, with_token=NOT_A_NUMBER) <= {"error", "rejected", "deadline"}
        failed = [s for state in requests(shard) for s in state.sequences if s.message == "the logits are not numbers"]
        assert failed and all(NOT_A_NUMBER in unpack_tokens(s.request.prompt_token_ids) for s in failed)


def test_loss_alone_costs_nobody_his_place() -> None:
    """No worker is fenced and nobody takes over, though messages are lost and come twice."""
    for shard in runs(Scenario(num_faults=0, loss=0.02, duplication=0.05)):
        assert shard.ledger.counts["fence_worker"] == 0 and len(shard.takeovers) == 1


@pytest.mark.parametrize("kind", ["edge", "gateway", "worker", "scheduler", "detokenizer"])
def test_partitions(kind: str) -> None:
    for shard in runs(Scenario(faults=(f"cut-{kind}",), num_faults=10), 4):
        assert shard.faults[f"cut-{kind}"] == 10


@pytest.mark.parametrize("fault", ["stall-server", "restart-server"])
def test_the_server_stands_still_or_starts_again(fault: str) -> None:
    for shard in runs(Scenario(faults=(fault,), num_faults=6), 4):
        assert shard.faults[fault] == 6


def test_rule_13_what_only_a_worker_that_left_could_run_does_not_wait_for_ever() -> None:
    given_up = 0
    scenario = Scenario(faults=("join-worker", "leave-worker"), num_faults=12, num_requests=30, step_s=0.1, leaving=0.0)
    for shard in runs(scenario):
        for state in requests(shard):
            asked = (state.request.created_ns - START_NS) / 1e9
            given_up += (
                "KV cache" in state.sequences[0].message
                and shard.ended_at[state.request.request_id] > asked + SUCCESSOR_S
            )
    assert given_up >= 3


def test_workers_of_all_sizes_come_and_drain() -> None:
    moves = 0
    for shard in runs(Scenario(faults=("join-worker", "leave-worker"), num_faults=12, step_s=0.05), 6):
        leader = shard.leaders[0].leader
        assert leader is not None
        moves += leader.core.num_moves
    assert moves > 0
