"""NaN rows on the real engine: they fail their own request alone and leave nothing behind that poisons another.

The blocks of a failed sequence are not cleaned. Attention gathers a sequence's own slots only, so what lies beyond
them is never read, and a block is written before its new owner reads it; the prefix cache never names what is not
finite.
"""

import numpy as np
import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.isolation import step_one_by_one
from shared.log.state import SequenceState
from tests.engine.driver import greedy
from tests.engine.scheduled import Scheduled
from tests.engine.test_cpu_engine import one_token_step

POISON = 300
PROMPTS = [[5, 6, 7], [9] * 40, [11, 12, 13, 14], [20, 21] * 9]
LONG = [*range(20, 100), *range(110, 150)]
NUM_OUTPUTS = 24


def tokens_of(engine: CpuEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt on a shard of its own."""
    outputs = []
    for prompt in prompts:
        shard = Scheduled(engine)
        sequence = shard.ask(prompt, greedy(NUM_OUTPUTS))
        shard.run()
        outputs.append(list(sequence.tokens))
    return outputs


def poison_embedding(engine: CpuEngine) -> None:
    """From now on this id computes as NaN."""
    engine.forward.decoder.embedding[POISON] = float("nan")


def failed(shard: Scheduled, sequence: SequenceState) -> bool:
    """Whether it ended with the error that tells why."""
    return sequence.reason == "error" and "not finite" in shard.errors[sequence.id]


def not_finite_blocks(engine: CpuEngine) -> set[int]:
    """Blocks that hold any value that is no number."""
    finite = torch.isfinite(engine.forward.kv_cache).all(dim=5).all(dim=4).all(dim=3).all(dim=1).all(dim=0)
    return set(np.flatnonzero(~finite.numpy()).tolist())


@pytest.mark.parametrize("budget", [512, 24])
def test_neighbours_of_a_poisoned_row_are_as_if_alone(tiny_engine: CpuEngine, budget: int) -> None:
    """budget 24: prompts are computed in chunks, and the first NaN comes in a chunk of which nothing is sampled."""
    alone = tokens_of(tiny_engine, PROMPTS)
    tiny_engine.forward.kv_cache.zero_()
    poison_embedding(tiny_engine)
    shard = Scheduled(tiny_engine, max_num_batched_tokens=budget)
    sequences = [shard.ask(prompt, greedy(NUM_OUTPUTS)) for prompt in PROMPTS[:2]]
    poisoned = shard.ask([*LONG[:40], POISON, *LONG[40:]], greedy(NUM_OUTPUTS))
    sequences += [shard.ask(prompt, greedy(NUM_OUTPUTS)) for prompt in PROMPTS[2:]]
    was_spoiled = False
    while shard.step():
        spoiled = not_finite_blocks(tiny_engine)
        was_spoiled |= bool(spoiled)
        assert not spoiled & shard.named_blocks()
    assert was_spoiled, "the failed sequence wrote no NaN: the test shows nothing"
    assert failed(shard, poisoned) and not poisoned.tokens
    assert list(shard.errors) == [poisoned.id]
    assert [list(sequence.tokens) for sequence in sequences] == alone


def test_nan_in_the_cache_of_a_running_sequence_fails_it_alone(tiny_engine: CpuEngine) -> None:
    """Whatever wrote it: it is found when the sequence reads it, in the middle of its answer."""
    alone = tokens_of(tiny_engine, PROMPTS)
    tiny_engine.forward.kv_cache.zero_()
    shard = Scheduled(tiny_engine)
    sequences = [shard.ask(prompt, greedy(NUM_OUTPUTS)) for prompt in PROMPTS]
    for _ in range(NUM_OUTPUTS // 2):
        shard.step()
    victim = sequences.pop(1)
    alone_victim = alone.pop(1)
    last_block = shard.blocks_of(victim)[-1]
    tiny_engine.forward.kv_cache[2, 1, last_block, 0, 0, 0] = float("nan")
    shard.run()
    assert failed(shard, victim)
    assert list(victim.tokens) == alone_victim[: len(victim.tokens)], "what it has said before stands"
    assert [list(sequence.tokens) for sequence in sequences] == alone
    assert not not_finite_blocks(tiny_engine) & shard.named_blocks()


def test_neighbours_logits_are_equal_to_the_bit(tiny_engine: CpuEngine) -> None:
    """The same batch with a healthy id in the poisoned one's place."""

    def logits(stranger: int) -> torch.Tensor:
        batch = one_token_step(tiny_engine)
        batch.token_ids = np.array([5, stranger, 9], dtype=np.int32)
        batch.positions = np.zeros(3, dtype=np.int64)
        batch.slot_mapping = np.arange(3, dtype=np.int64) * tiny_engine.block_size
        batch.cu_seqlens_q = np.arange(4, dtype=np.int32)
        batch.context_lens = np.ones(3, dtype=np.int32)
        batch.block_tables = np.arange(3, dtype=np.int32)[:, None]
        batch.sampled = np.arange(3, dtype=np.int32)
        batch.output_positions = np.zeros(3, dtype=np.int32)
        batch.rows = batch.rows * 3
        return tiny_engine.compute_logits(batch)

    healthy = logits(POISON)
    poison_embedding(tiny_engine)
    poisoned = logits(POISON)
    assert torch.isnan(poisoned[1]).all()
    assert torch.equal(poisoned[[0, 2]], healthy[[0, 2]])


@pytest.mark.parametrize("budget", [512, 24])
def test_whoever_gets_the_blocks_next_computes_what_is_right(tiny_engine: CpuEngine, budget: int) -> None:
    clean = tokens_of(tiny_engine, [LONG])[0]
    tiny_engine.forward.kv_cache.zero_()
    poison_embedding(tiny_engine)
    num_blocks = -(-(len(LONG) + NUM_OUTPUTS) // tiny_engine.block_size)
    shard = Scheduled(tiny_engine, num_blocks=num_blocks, max_num_batched_tokens=budget)
    poisoned = shard.ask([POISON, *LONG], greedy(NUM_OUTPUTS))
    shard.run()
    assert failed(shard, poisoned)
    assert shard.named_blocks() == set(), "the failed sequence computed nothing finite"
    spoiled = not_finite_blocks(tiny_engine)
    assert spoiled
    heir = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.step()
    assert spoiled & set(shard.blocks_of(heir)), "no block is used again: the test shows nothing"
    shard.run()
    assert list(heir.tokens) == clean
    assert shard.scheduler.prefix_cache_hits == 0


def test_the_same_prompt_again_finds_no_cache_of_the_failed_one(tiny_engine: CpuEngine) -> None:
    """A fault of the moment, not of the prompt: the second try must not read what the first has left."""
    clean = tokens_of(tiny_engine, [LONG])[0]
    embedding = tiny_engine.forward.decoder.embedding
    tiny_engine.forward.kv_cache.zero_()
    healthy = embedding[LONG[0]].clone()
    embedding[LONG[0]] = float("inf")
    shard = Scheduled(tiny_engine, max_num_batched_tokens=24)
    first = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.run()
    assert failed(shard, first)
    embedding[LONG[0]] = healthy
    again = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.run()
    assert list(again.tokens) == clean


def test_cache_that_was_spoiled_later_fails_one_request_and_is_forgotten(tiny_engine: CpuEngine) -> None:
    """NaN gets into blocks that have names already: who hits them fails, and the next one computes them anew."""
    clean = tokens_of(tiny_engine, [LONG])[0]
    tiny_engine.forward.kv_cache.zero_()
    shard = Scheduled(tiny_engine)
    first = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.step()
    block = shard.blocks_of(first)[2]
    shard.run()
    assert list(first.tokens) == clean
    assert block in shard.named_blocks()
    tiny_engine.forward.kv_cache[1, 0, block, 3] = float("nan")
    victim = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.run()
    assert shard.scheduler.prefix_cache_hits > 0
    assert failed(shard, victim)
    assert not not_finite_blocks(tiny_engine) & shard.named_blocks()
    shard.open_epoch()
    second = shard.ask(LONG, greedy(NUM_OUTPUTS))
    shard.run()
    assert list(second.tokens) == clean


def test_spoiled_blocks_are_told_one_by_one_too(tiny_engine: CpuEngine) -> None:
    """After a step that raised, too, the failed sequence's blocks are known."""
    poison_embedding(tiny_engine)
    batch = one_token_step(tiny_engine, token=POISON, slot=3 * tiny_engine.block_size, block=3)
    assert tiny_engine.step(batch).spoiled_blocks == [3]
    output = step_one_by_one(tiny_engine, batch)
    assert (list(output.errors), output.spoiled_blocks) == ([0], [3])
    batch.sampled = batch.output_positions = np.zeros(0, dtype=np.int32)
    batch.rows = []
    output = step_one_by_one(tiny_engine, batch)
    assert (list(output.failed), output.spoiled_blocks) == ([0], [3])
