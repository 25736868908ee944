"""How a row ended is told alike in C++, on a device and in Python."""

import re
from pathlib import Path

import pytest

from kernels.sampling import status
from kernels.sampling.status import RowStatus, reason_of

FOLDER = Path(status.__file__).parent


@pytest.mark.parametrize("header", ["sampling.h", "device_row.cuh"])
def test_headers_have_the_same_numbers(header: str) -> None:
    [body] = re.findall(r"enum RowStatus : int32_t \{(.*?)\}", (FOLDER / header).read_text())
    numbers = {name: int(number) for name, number in re.findall(r"k(\w+) = (\d+)", body)}
    assert numbers == {"".join(map(str.title, member.name.split("_"))): int(member) for member in RowStatus}


def test_each_failure_has_a_reason_of_its_own() -> None:
    failures = [member for member in RowStatus if member is not RowStatus.SAMPLED]
    reasons = {reason_of(member, 70, 64) for member in failures}
    assert len(reasons) == len(failures)
    assert "token id 70 is not in the vocabulary of 64" in reasons


@pytest.mark.parametrize("number", [RowStatus.SAMPLED, 4])
def test_what_is_no_failure_has_none(number: int) -> None:
    with pytest.raises(ValueError):
        reason_of(number, 0, 64)
