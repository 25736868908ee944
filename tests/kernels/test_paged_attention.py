"""Paged attention: the CPU path against the reference, over mixed decode and prefill, groups, windows, block sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.paged_attention import cpu
from kernels.paged_attention.plan import plan_attention
from tests.kernels.arrays import DTYPES, assert_close, expected_attention, make_paged_context, random_tensor

SHAPES = [(9, 3, 64), (4, 4, 32), (8, 1, 128), (14, 2, 16)]

STEPS = {
    "one token": [(1, 1)],
    "decode, equal lengths": [(1, 40), (1, 40), (1, 40)],
    "decode, mixed lengths": [(1, 1), (1, 130), (1, 17), (1, 33), (1, 16)],
    "whole prompts": [(5, 5), (33, 33)],
    "chunks": [(16, 48), (7, 100)],
    "decode and prefill in one step": [(1, 20), (16, 16), (1, 3), (9, 50), (1, 77)],
}


def compare(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
    seed: int = 0,
) -> None:
    rng = np.random.default_rng(seed)
    num_heads, num_kv_heads, head_dim = heads
    context = make_paged_context(rng, lengths, num_kv_heads, head_dim, block_size, dtype)
    query = random_tensor(rng, (int(context.cu_seqlens_q[-1]), num_heads, head_dim), dtype)
    plan = plan_attention(
        context.cu_seqlens_q, context.context_lens, context.block_tables, block_size, dtype, sliding_window=window
    )
    actual = cpu.paged_attention(query, context.key_cache, context.value_cache, plan, head_dim**-0.5)
    assert_close(actual, expected_attention(context, query, window), dtype)


@pytest.mark.parametrize("window", [None, 8, 30])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_equals_reference(step: str, heads: tuple[int, int, int], dtype: torch.dtype, window: int | None) -> None:
    compare(STEPS[step], heads, 16, dtype, window)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_reference_for_any_step(data: st.DataObject) -> None:
    contexts = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=6))
    lengths = [(data.draw(st.one_of(st.just(1), st.integers(1, context))), context) for context in contexts]
    num_kv_heads = data.draw(st.integers(1, 3))
    heads = (num_kv_heads * data.draw(st.integers(1, 4)), num_kv_heads, data.draw(st.sampled_from([8, 16, 64])))
    window = data.draw(st.one_of(st.none(), st.integers(1, 100)))
    compare(lengths, heads, data.draw(st.sampled_from([1, 4, 16])), torch.float32, window, seed=len(contexts))


@settings(max_examples=50, deadline=None)
@given(contexts=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_decode_groups_cover_each_sequence_once_and_pad_little(contexts: list[int]) -> None:
    lengths = np.array(contexts, dtype=np.int32)
    tables = np.zeros((len(contexts), -(-max(contexts) // 16)), dtype=np.int32)
    cu_seqlens_q = np.arange(len(contexts) + 1, dtype=np.int32)
    plan = plan_attention(cu_seqlens_q, lengths, tables, 16, torch.float32)
    assert sorted(row for group in plan.decodes for row in group.rows.tolist()) == list(range(len(contexts)))
    for group in plan.decodes:
        own = lengths[group.rows.numpy()]
        assert group.num_keys == own.max()
        assert group.num_keys * len(own) - own.sum() <= max(256, group.num_keys * len(own) // 8)


def test_a_sequence_full_of_nan_does_not_touch_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    context = make_paged_context(rng, [(1, 20), (1, 35), (6, 30)], 2, 16, 8, torch.float32)
    query = random_tensor(rng, (8, 4, 16), torch.float32)
    plan = plan_attention(context.cu_seqlens_q, context.context_lens, context.block_tables, 8, torch.float32)
    healthy = cpu.paged_attention(query, context.key_cache, context.value_cache, plan, 0.25)
    context.key_cache[context.block_tables[1, 0]] = float("nan")
    poisoned = cpu.paged_attention(query, context.key_cache, context.value_cache, plan, 0.25)
    assert poisoned[1].isnan().all()
    others = [0, *range(2, 8)]
    assert torch.equal(poisoned[others], healthy[others])
