"""Names and prefix hashes of many blocks are those of shared.block_hash and shared.prefix_hash, one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.block_names import crc_chain, name_blocks, name_chain
from shared.block_hash import HASH_BYTES, block_hash
from shared.messages.packed import INT32, pack
from shared.prefix_hash import extend

SIZE = 4

token_ids = st.integers(0, 2**31 - 1)
blocks = st.lists(token_ids, min_size=SIZE, max_size=SIZE)
names = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)


@given(st.lists(st.tuples(names, blocks), min_size=1, max_size=9))
def test_blocks_of_different_sequences(chosen: list[tuple[bytes, list[int]]]) -> None:
    parents = np.frombuffer(b"".join(parent for parent, _ in chosen), dtype=np.uint8).reshape(-1, HASH_BYTES)
    ids = np.array([block for _, block in chosen], dtype=np.int32)
    expected = [block_hash(parent, pack(INT32, block)) for parent, block in chosen]
    assert [name.tobytes() for name in name_blocks(parents, ids)] == expected


@given(names, st.lists(blocks, min_size=1, max_size=9))
def test_consecutive_blocks_of_one_sequence(parent: bytes, chain: list[list[int]]) -> None:
    found = name_chain(parent, np.array(chain, dtype=np.int32))
    for name, block in zip(found, chain, strict=True):
        parent = block_hash(parent, pack(INT32, block))
        assert name.tobytes() == parent


@given(st.integers(0, 2**32 - 1), st.lists(token_ids, min_size=1, max_size=30), st.integers(1, SIZE))
def test_the_prefix_hash_at_each_end_of_a_block(before: int, ids: list[int], num_first: int) -> None:
    crcs, last = crc_chain(before, pack(INT32, ids), num_first, SIZE)
    ends = range(num_first, len(ids) + 1, SIZE)
    assert crcs.dtype == np.uint32
    assert crcs.tolist() == [extend(before, pack(INT32, ids[:end])) for end in ends]
    assert last == extend(before, pack(INT32, ids))
