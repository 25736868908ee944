"""A group's swap space: every rank swaps its own part of each block, and the tokens are those of one rank."""

import io

import numpy as np
import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.host_slots import GIB
from services.worker.engine.interface import Swaps
from services.worker.engine.isolation import EngineBroken
from services.worker.parallel.orders import Swap, orders_from, to_bytes
from tests.engine.conftest import store_tiny_model
from tests.engine.options import Options
from tests.engine.test_swap import NUM_BLOCKS, run
from tests.parallel.groups import KV_CACHE_BYTES, running_group

SWAP_SPACE = (1 << 20) / GIB


def swaps(out: list[tuple[int, int]], back: list[tuple[int, int]]) -> Swaps:
    return Swaps(*(np.array(pairs, dtype=np.int32).reshape(-1, 2) for pairs in (out, back)))


@pytest.mark.parametrize("pairs", [([(5, 0), (7, 1)], [(1, 9)]), ([], [(3, 2)]), ([(1, 2)], []), ([], [])], ids=str)
def test_an_order_says_what_goes_where(pairs: tuple[list[tuple[int, int]], ...]) -> None:
    expected = swaps(*pairs)
    (order,) = orders_from(io.BytesIO(to_bytes(Swap.of(expected))))
    assert isinstance(order, Swap)
    found = order.swaps()
    assert np.array_equal(found.out, expected.out) and np.array_equal(found.back, expected.back)
    assert found.out.dtype == found.back.dtype == np.int32
    assert found.out.shape[1] == found.back.shape[1] == 2


@pytest.mark.parametrize(("size", "num_kv_heads"), [(2, 2), (2, 1)])
def test_tokens_of_preempted_sequences_are_those_of_one_rank(
    size: int, num_kv_heads: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("swap")
    stored = store_tiny_model(folder, "LlamaForCausalLM", torch.bfloat16, num_key_value_heads=num_kv_heads)
    alone = CpuEngine.load(
        stored, Options(dtype="float32", kv_cache_memory_bytes=KV_CACHE_BYTES, swap_space=SWAP_SPACE)
    )
    expected, _ = run(alone, alone.num_blocks)
    with running_group(stored, size, swap_space=SWAP_SPACE) as group:
        # The space is of all ranks together, as a block is, unless several have the same head.
        assert group.num_swap_slots == alone.num_swap_slots * num_kv_heads // size
        tokens, plenty = run(group, group.num_blocks)
        assert plenty.scheduler.num_preemptions == 0
        assert tokens == expected
        tokens, shard = run(group, NUM_BLOCKS)
        assert shard.scheduler.num_preemptions > 0 and shard.num_swapped_in > 0
        assert tokens == expected


def test_what_goes_wrong_in_a_swap_ends_the_group(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One rank has swapped, the other one has not: nobody can believe these blocks."""
    stored = store_tiny_model(tmp_path_factory.mktemp("broken"), "LlamaForCausalLM")
    with running_group(stored, 2, swap_space=SWAP_SPACE) as group:

        def fail(_: object) -> None:
            raise MemoryError("none left")

        group._engine.swap = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineBroken, match="none left"):
            group.swap(swaps([(1, 0)], []))
