"""Planted bugs of the protocol: each is seen within a few seeds, and is what is seen."""

import pytest

from tests.shard.many import run_seed
from tests.shard.mutants import MUTANTS, planted

NUM_SEEDS = 40


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    scenario = MUTANTS[name].scenario
    for seed in range(NUM_SEEDS):
        with planted(name):
            problem = run_seed(seed, scenario).problem
        if problem:
            assert run_seed(seed, scenario).problem == "", f"seed {seed} fails without the bug, too"
            return
    pytest.fail(f"{NUM_SEEDS} seeds passed with the bug planted")
