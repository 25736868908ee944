"""Paged attention in C++, at every instruction level of this machine: against the reference, and what never matters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.native.isa import Level, cpu_flags, levels_of
from kernels.paged_attention.native import NativeAttention
from kernels.paged_attention.packed import pack_keys, pack_values
from tests.kernels.arrays import PagedContext, expected_attention, make_paged_context, random_tensor, to_float32

pytestmark = pytest.mark.parametrize("level", levels_of(cpu_flags()))

Heads = tuple[int, int, int]
HEADS: list[Heads] = [(9, 3, 64), (4, 4, 32), (16, 1, 128), (14, 2, 96), (5, 1, 256), (12, 2, 80), (3, 3, 16)]
STEPS = {
    "one token": [(1, 1)],
    "decode": [(1, 1), (1, 16), (1, 17), (1, 255), (1, 256), (1, 257), (1, 700)],
    "whole prompts": [(5, 5), (33, 33), (270, 270)],
    "chunks": [(16, 48), (7, 300), (130, 530)],
    "decode and chunks": [(1, 20), (16, 16), (1, 3), (60, 350), (1, 777)],
}


def attend(
    context: PagedContext, query: Tensor, heads: Heads, level: Level, window: int | None = None, num_threads: int = 2
) -> Tensor:
    """bfloat16 [T, H, D] by C++."""
    block_size = context.key_cache.shape[1]
    attention = NativeAttention(*heads, block_size, window, level, num_threads)
    attention.plan(context.cu_seqlens_q, context.context_lens, context.block_tables)
    keys, values = pack_keys(context.key_cache), pack_values(context.value_cache)
    first, second = attention.attend([query, query], [keys, keys], [values, values])
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))  # a plan serves any number of layers
    return first


def make(lengths: list[tuple[int, int]], heads: Heads, block_size: int, seed: int = 0) -> tuple[PagedContext, Tensor]:
    """A context and queries, whose scores differ enough for weights from nearly 0 to nearly 1."""
    rng = np.random.default_rng(seed)
    context = make_paged_context(rng, lengths, heads[1], heads[2], block_size, torch.bfloat16)
    return context, 2 * random_tensor(rng, (int(context.cu_seqlens_q[-1]), heads[0], heads[2]), torch.bfloat16)


def compare(lengths: list[tuple[int, int]], heads: Heads, block_size: int, level: Level, window: int | None) -> None:
    context, query = make(lengths, heads, block_size)
    expected = expected_attention(context, query, window)
    actual = to_float32(attend(context, query, heads, level, window))
    # The output is rounded once to 8 bits, and so are the weights, whose errors are independent.
    np.testing.assert_allclose(actual, expected, rtol=2**-8, atol=2**-7)


@pytest.mark.parametrize("window", [None, 8, 300])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_equals_reference(step: str, heads: Heads, window: int | None, level: Level) -> None:
    compare(STEPS[step], heads, 16, level, window)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_reference_for_any_step(level: Level, data: st.DataObject) -> None:
    contexts = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    lengths = [(data.draw(st.one_of(st.just(1), st.integers(1, context))), context) for context in contexts]
    num_kv_heads = data.draw(st.integers(1, 3))
    heads = (num_kv_heads * data.draw(st.integers(1, 16)), num_kv_heads, 16 * data.draw(st.integers(1, 16)))
    window = data.draw(st.one_of(st.none(), st.integers(1, 310)))
    compare(lengths, heads, data.draw(st.sampled_from([16, 32, 48, 64])), level, window)


def only(context: PagedContext, sequence: int) -> PagedContext:
    """One of the sequences as a batch of its own."""
    first, last = context.cu_seqlens_q[sequence : sequence + 2]
    return PagedContext(
        context.key_cache,
        context.value_cache,
        np.array([0, last - first], dtype=np.int32),
        context.context_lens[sequence : sequence + 1],
        context.block_tables[sequence : sequence + 1],
    )


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(heads: Heads, window: int | None, level: Level) -> None:
    lengths = [(1, 777), (1, 20), (100, 400), (1, 1), (37, 37), (1, 512), (1, 1500)]
    context, query = make(lengths, heads, 32)
    together = attend(context, query, heads, level, window)
    for sequence in range(len(lengths)):
        first, last = context.cu_seqlens_q[sequence : sequence + 2]
        for num_threads in (1, 2, 7):
            alone = attend(only(context, sequence), query[first:last], heads, level, window, num_threads)
            assert torch.equal(alone, together[first:last])


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_token_has_the_same_bits_in_any_chunk(heads: Heads, window: int | None, level: Level) -> None:
    whole, query = make([(430, 430)], heads, 16)
    expected = attend(whole, query, heads, level, window)
    for first, last in [(0, 1), (100, 101), (429, 430), (1, 90), (250, 263), (7, 430)]:
        chunk = PagedContext(
            whole.key_cache,
            whole.value_cache,
            np.array([0, last - first], dtype=np.int32),
            np.array([last], dtype=np.int32),
            whole.block_tables,
        )
        assert torch.equal(attend(chunk, query[first:last], heads, level, window), expected[first:last])


def test_a_sequence_full_of_nan_does_not_touch_its_neighbours(level: Level) -> None:
    heads = (4, 2, 32)
    context, query = make([(1, 20), (1, 35), (6, 30)], heads, 16)
    healthy = attend(context, query, heads, level)
    for cache in (context.key_cache, context.value_cache):
        kept = cache[context.block_tables[1, 0]].clone()
        cache[context.block_tables[1, 0]] = float("nan")
        poisoned = attend(context, query, heads, level)
        cache[context.block_tables[1, 0]] = kept
        assert poisoned[1].isnan().all()
        others = [0, *range(2, 8)]
        assert torch.equal(poisoned[others], healthy[others])


def test_huge_scores_are_no_trouble(level: Level) -> None:
    heads = (6, 2, 64)
    context, query = make([(1, 600), (40, 300)], heads, 16)
    query *= 1000
    actual = to_float32(attend(context, query, heads, level))
    expected = expected_attention(context, query)
    np.testing.assert_allclose(actual, expected, rtol=2**-8, atol=2**-7)
