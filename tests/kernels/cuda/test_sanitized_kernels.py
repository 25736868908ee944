"""Kernels under sanitizers: no races, nothing undefined, no byte outside a tensor. Operations add their checks."""

from collections.abc import Iterator

import pytest

from tests.kernels.cuda import attention_checks, quant_checks, sampling_checks, sampling_edges, small_checks
from tests.kernels.emulator.sanitized import MEMORY, THREADS, Check, Sanitizer

CHECKS: list[Check] = [
    *small_checks.CHECKS,
    *attention_checks.CHECKS,
    *sampling_checks.CHECKS,
    *sampling_edges.CHECKS,
    *quant_checks.CHECKS,
]

# Each is compiled anew, by a compiler that takes its time, and a launch takes ten times as long as without.
pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=[MEMORY, THREADS])
def sanitizer(request: pytest.FixtureRequest) -> Iterator[Sanitizer]:
    with Sanitizer(request.param) as entered:
        yield entered


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sanitizer_finds_nothing(sanitizer: Sanitizer, check: Check) -> None:
    assert sanitizer.finding(check) == ""
