"""The vectorised prefix hash equals the one that the fold computes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.prefix_crc import extend_all
from shared.prefix_hash import extend_by_one

hashes = st.integers(0, 2**32 - 1)
token_ids = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.tuples(hashes, token_ids), max_size=40))
def test_many_at_once_equal_one_by_one(pairs: list[tuple[int, int]]) -> None:
    before = np.array([pair[0] for pair in pairs], dtype=np.uint32)
    tokens = np.array([pair[1] for pair in pairs], dtype=np.int32)
    assert extend_all(before, tokens).tolist() == [extend_by_one(*pair) for pair in pairs]
