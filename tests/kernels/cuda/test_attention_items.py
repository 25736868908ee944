"""How a step's attention is cut: everything once, nothing twice, about equal shares."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.paged_attention.items import PREFILL_ROWS, TILE_TOKENS, Items, cut, most_decode_items

lengths = st.integers(1, 5000).flatmap(
    lambda context: st.tuples(st.sampled_from([1, min(7, context), context]), st.just(context))
)
steps = st.lists(lengths, min_size=1, max_size=40)


def cut_step(step: list[tuple[int, int]], group: int, num_parallel: int, window: int) -> Items:
    queries, contexts = np.array(step, dtype=np.int32).T
    return cut(np.concatenate(([0], np.cumsum(queries))).astype(np.int32), contexts, group, 4, num_parallel, window)


@given(steps, st.integers(1, 600), st.sampled_from([0, 1, 100, 4096]))
def test_each_key_that_a_single_query_sees_is_of_one_item(
    step: list[tuple[int, int]], num_parallel: int, window: int
) -> None:
    items = cut_step(step, 3, num_parallel, window)
    assert len(items.decode) <= most_decode_items(len(step), num_parallel, 4)
    slots: list[int] = []
    for sequence, (queries, context) in enumerate(step):
        own = items.decode[items.decode[:, 0] == sequence]
        if queries > 1:
            assert not len(own) and not items.splits[sequence].any()
            continue
        oldest = max(0, context - window) if window else 0
        assert own[0, 1] == oldest // TILE_TOKENS * TILE_TOKENS and own[-1, 2] == context
        assert (own[1:, 1] == own[:-1, 2]).all() and (own[:, 1] < own[:, 2]).all()
        assert (own[:, 1] % TILE_TOKENS == 0).all()
        first_slot, num_slots = items.splits[sequence].tolist()
        assert num_slots == (len(own) if len(own) > 1 else 0)
        expected = [-1] if len(own) == 1 else [*range(first_slot, first_slot + num_slots)]
        assert own[:, 3].tolist() == expected
        slots += expected if num_slots else []
    assert slots == [*range(items.num_slots)]


@given(steps, st.sampled_from([1, 3, 7, 16]))
def test_each_row_of_several_queries_is_of_one_item(step: list[tuple[int, int]], group: int) -> None:
    items = cut_step(step, group, 100, 0)
    for sequence, (queries, _) in enumerate(step):
        first_rows = sorted(items.prefill[items.prefill[:, 0] == sequence, 1].tolist())
        assert first_rows == ([*range(0, queries * group, PREFILL_ROWS)] if queries > 1 else [])


def shares(items: Items) -> NDArray[np.int32]:
    """Keys of each item."""
    return items.decode[:, 2] - items.decode[:, 1]


def test_a_long_sequence_beside_short_ones_is_split() -> None:
    items = cut_step([(1, 100)] * 63 + [(1, 100_000)], 8, 264, 0)
    assert len(items.decode) > 63 + 50
    assert shares(items).max() < 2 * 100_000 // 60


def test_many_equal_sequences_are_not() -> None:
    items = cut_step([(1, 4096)] * 264, 8, 264, 0)
    assert items.num_slots == 0 and len(items.decode) == 264


def test_one_sequence_alone_keeps_the_device_busy() -> None:
    items = cut_step([(1, 32768)], 8, 264, 0)
    assert 60 <= len(items.decode) <= 264 // 4
    assert shares(items).max() - shares(items).min() <= TILE_TOKENS


def test_what_sees_most_begins_first() -> None:
    items = cut_step([(100, 100), (100, 4000)], 2, 264, 0)
    assert items.prefill[0].tolist() == [1, 192]
    assert items.prefill[-1].tolist() == [0, 0]
