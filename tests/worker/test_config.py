"""Options whose default depends on another one."""

from typing import Literal

import pytest

from services.worker.config import WorkerConfig


@pytest.mark.parametrize(("engine", "expected"), [("cpu", 512), ("fake", 8192)])
def test_a_step_of_a_cpu_takes_fewer_tokens(engine: Literal["cpu", "fake"], expected: int) -> None:
    assert WorkerConfig(engine=engine).max_num_batched_tokens == expected
    assert WorkerConfig(engine=engine, max_num_batched_tokens=7).max_num_batched_tokens == 7
