"""Kernels under sanitizers: no races, nothing undefined, no byte outside a tensor. Operations add their checks."""

import pytest

from tests.kernels.cuda import small_checks
from tests.kernels.emulator.sanitized import MEMORY, THREADS, Check, findings

CHECKS: list[Check] = [*small_checks.CHECKS]


def test_kernels_leave_alone_what_is_not_theirs() -> None:
    assert findings(MEMORY, CHECKS) == {check.__name__: "" for check in CHECKS}


@pytest.mark.full
def test_kernels_have_no_races() -> None:
    assert findings(THREADS, CHECKS) == {check.__name__: "" for check in CHECKS}
