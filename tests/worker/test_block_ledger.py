"""Rules 10 and 21: what the KV blocks hold is known by content, reported at a new epoch, and never taken on trust."""

import numpy as np

from services.worker.core.plan_executor import PlanExecutor
from shared.block_hash import HASH_BYTES, block_hash, root_hash
from shared.messages.packed import INT32, pack, unpack
from shared.messages.pipeline import RowError
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend
from tests.worker.engines import BLOCK_SIZE, MemoryEngine, continuation, make_executor, run_step
from tests.worker.plans import Planned, SmallLeader, rows_of

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def names_of(tokens: list[int], cache_key: str = "") -> list[bytes]:
    """Hashes of the full blocks of these tokens."""
    names, parent = [], root_hash(cache_key)
    for first in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = block_hash(parent, pack(INT32, tokens[first : first + BLOCK_SIZE]))
        names.append(parent)
    return names


def report_of(executor: PlanExecutor) -> dict[int, bytes]:
    block_ids, hashes = executor.open_epoch()
    blocks = unpack(INT32, block_ids)
    return {block: hashes[HASH_BYTES * at : HASH_BYTES * (at + 1)] for at, block in enumerate(blocks)}


def run_to_end(leader: SmallLeader, executor: PlanExecutor, engine: MemoryEngine) -> list[RowError]:
    errors = []
    while (plan := leader.make_plan()) is not None:
        frame = run_step(executor, engine, plan)
        leader.update(frame)
        errors += frame.errors
        if frame.errors:
            break
    return errors


def served(chunk: int = 3, max_tokens: int = 4, cache_key: str = "") -> tuple[SmallLeader, PlanExecutor, MemoryEngine]:
    """One finished sequence of PROMPT."""
    leader, executor, engine = SmallLeader(BLOCK_SIZE, chunk), make_executor(), MemoryEngine()
    leader.open_epoch(1)
    leader.add(Planned(1, PROMPT, Sampling(max_tokens=max_tokens), cache_key))
    assert run_to_end(leader, executor, engine) == []
    return leader, executor, engine


def hit(leader: SmallLeader, prompt: list[int], blocks: list[int], cache_key: str = "", number: int = 9) -> Planned:
    """A sequence that the leader believes to be cached in these blocks."""
    sequence = Planned(number, prompt, Sampling(max_tokens=3), cache_key)
    sequence.blocks = blocks
    sequence.num_cached = len(blocks) * BLOCK_SIZE
    leader.add(sequence)
    return sequence


def test_rule_10_the_report_names_full_blocks_by_content() -> None:
    leader, executor, _ = served(max_tokens=4, cache_key="tenant")
    computed = [*PROMPT, *leader.sequences[1].outputs][:-1]  # the KV of the last token was never written
    assert len(computed) == 13
    expected = names_of(computed, "tenant")
    assert report_of(executor) == dict(zip(leader.sequences[1].blocks, expected, strict=False))
    assert len(expected) == 3
    assert len(executor.table) == 0, "a new epoch holds no sequences"


def test_rule_10_blocks_of_equal_content_are_equal_however_they_were_chunked() -> None:
    reports = [report_of(served(chunk)[1]) for chunk in (1, 3, 4, 64)]
    assert all(report == reports[0] for report in reports)


def test_rule_10_blocks_that_are_written_again_are_not_reported() -> None:
    leader, executor, engine = served()
    leader.next_block = 0  # freed, and reused by a sequence that fills only the first of them
    leader.add(Planned(2, [90, 91, 92, 93, 94], Sampling(max_tokens=1)))
    leader.remove(1)
    assert run_to_end(leader, executor, engine) == []
    report = report_of(executor)
    assert report[0] == names_of([90, 91, 92, 93])[0]
    assert 1 not in report, "half written"
    assert report[2] == names_of([*PROMPT, *continuation(PROMPT, 4)])[2]


def test_rule_21_a_hit_continues_from_what_the_blocks_hold() -> None:
    leader, executor, engine = served()
    prompt = [*PROMPT[:8], 70, 71]
    sequence = hit(leader, prompt, leader.sequences[1].blocks[:2])
    engine.batches.clear()
    assert run_to_end(leader, executor, engine) == []
    assert engine.batches[0].positions.tolist() == [8, 9]
    assert sequence.outputs == continuation(prompt, 3)


def test_rule_21_a_wrong_hit_shows_in_the_prefix_hash() -> None:
    leader, executor, engine = served()
    believed = [1, 2, 3, 4, 5, 6]
    hit(leader, believed, leader.sequences[1].blocks[:1])
    plan = leader.make_plan()
    assert plan is not None
    row = rows_of(run_step(executor, engine, plan))[-1]
    assert row.prefix_hash != extend(0, pack(INT32, believed)), "the fold would not notice"
    assert row.prefix_hash == extend(0, pack(INT32, [*PROMPT[:4], 5, 6])), "what it was really computed on"


def test_rule_21_blocks_that_do_not_continue_each_other_are_refused() -> None:
    leader, executor, engine = served()
    first, second = leader.sequences[1].blocks[:2]
    hit(leader, PROMPT, [second, first])
    errors = run_to_end(leader, executor, engine)
    assert [error.sequence for error in errors] == [9]


def test_rule_21_another_tenant_cannot_hit() -> None:
    leader, executor, engine = served(cache_key="one")
    hit(leader, PROMPT, leader.sequences[1].blocks[:2], cache_key="two")
    assert [error.sequence for error in run_to_end(leader, executor, engine)] == [9]


def test_rule_10_the_cache_survives_a_new_epoch() -> None:
    leader, executor, engine = served()
    blocks = leader.sequences[1].blocks
    executor.open_epoch()
    leader.open_epoch(2)
    leader.sequences.clear()
    sequence = hit(leader, PROMPT, blocks[:2])
    assert run_to_end(leader, executor, engine) == []
    assert sequence.outputs == continuation(PROMPT, 3)


def test_a_failed_sequence_leaves_no_known_block() -> None:
    leader, executor = SmallLeader(BLOCK_SIZE), make_executor()
    leader.open_epoch(1)
    leader.add(Planned(1, PROMPT, Sampling(max_tokens=4)))
    plan = leader.make_plan()
    assert plan is not None
    engine = MemoryEngine()
    engine.next_token = lambda context: -5
    frame = run_step(executor, engine, plan)
    assert [error.sequence for error in frame.errors] == [1]
    assert report_of(executor) == {}


def test_the_ledger_itself() -> None:
    executor = make_executor()
    ledger = executor.ledger
    parent = root_hash("key")
    ledger.record(
        np.array([5], dtype=np.int32),
        np.frombuffer(parent, dtype=np.uint8)[None],
        np.full((1, HASH_BYTES), ord("h"), dtype=np.uint8),
        np.array([77], dtype=np.uint32),
    )
    assert ledger.hash_of(5) == b"h" * HASH_BYTES
    assert ledger.chain_end(np.array([5], dtype=np.int32), "key") == (b"h" * HASH_BYTES, 77)
    assert ledger.chain_end(np.array([5], dtype=np.int32), "other") is None
    assert ledger.chain_end(np.zeros(0, dtype=np.int32), "key") == (parent, 0)
    ledger.forget(np.array([5], dtype=np.int32))
    assert ledger.hash_of(5) is None
    assert ledger.chain_end(np.array([5], dtype=np.int32), "key") is None
