"""cp.async in the emulator: nothing arrives before it is waited for; and loads of 16 bytes."""

import numpy as np
import pytest
import torch

from tests.kernels.emulator import probes
from tests.kernels.emulator.module import SCHEDULES, EmulationError, Schedule

ONE = (1, 1, 1)
BYTES = torch.arange(1, 65, dtype=torch.uint8)


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_arrives_when_it_is_waited_for(schedule: Schedule, is_there: bool) -> None:
    seen = torch.zeros((3, 16), dtype=torch.uint8)
    from_memory = BYTES if is_there else None
    module = probes.load("copies", schedule)
    module.launch("tokenbus::seen_of_a_copy", ONE, ONE, (seen, from_memory, np.bool_(is_there)))
    arrived = BYTES[:16].tolist() if is_there else [0] * 16
    assert seen.tolist() == [[0xAA] * 16, [0xAA] * 16, arrived]
    assert module.counts.copied_bytes == (16 if is_there else 0)


@pytest.mark.parametrize("pending", range(5))
def test_groups_arrive_but_for_the_newest(schedule: Schedule, pending: int) -> None:
    seen = torch.full((5,), -1, dtype=torch.int32)
    probes.load("copies", schedule).launch(f"tokenbus::arrived<{pending}>", ONE, ONE, (seen, BYTES))
    assert seen.tolist() == [1] * (4 - pending) + [0] * pending + [0]


def test_more_than_16_groups_under_way_are_refused() -> None:
    module = probes.load("copies")
    module.launch("tokenbus::many_groups", ONE, ONE, (BYTES, np.int32(16)))
    with pytest.raises(EmulationError, match=r"too many groups of cp\.async under way"):
        module.launch("tokenbus::many_groups", ONE, ONE, (BYTES, np.int32(17)))


@pytest.mark.parametrize(("to_offset", "from_offset"), [(8, 0), (0, 8), (4, 4), (1, 0), (0, 15)])
def test_a_misaligned_copy_is_refused(to_offset: int, from_offset: int) -> None:
    arguments = (BYTES, np.int32(to_offset), np.int32(from_offset), np.bool_(True))
    with pytest.raises(EmulationError, match=r"a misaligned address for cp\.async"):
        probes.load("copies").launch("tokenbus::copy_at", ONE, ONE, arguments)


def test_a_copy_of_what_is_not_there_may_come_from_anywhere_but_not_go_there() -> None:
    module = probes.load("copies")
    module.launch("tokenbus::copy_at", ONE, ONE, (BYTES, np.int32(16), np.int32(3), np.bool_(False)))
    with pytest.raises(EmulationError, match=r"a misaligned address for cp\.async"):
        module.launch("tokenbus::copy_at", ONE, ONE, (BYTES, np.int32(8), np.int32(0), np.bool_(False)))


def test_a_misaligned_load_is_refused() -> None:
    module, out = probes.load("copies"), torch.zeros(1, dtype=torch.int32)
    module.launch("tokenbus::load_at", ONE, ONE, (out, BYTES, np.int32(16)))
    assert out.numpy().tobytes() == BYTES[16:20].numpy().tobytes()
    for offset in (1, 4, 8, 24):
        with pytest.raises(EmulationError, match="a misaligned address for a 16-byte load"):
            module.launch("tokenbus::load_at", ONE, ONE, (out, BYTES, np.int32(offset)))


@pytest.mark.parametrize("num_threads", [1, 6, 64])
def test_bytes_that_pass_are_counted(schedule: Schedule, num_threads: int) -> None:
    module, out = probes.load("copies", schedule), torch.zeros(num_threads, dtype=torch.int32)
    memory = torch.arange(num_threads * 16, dtype=torch.uint8)
    module.launch("tokenbus::traffic", (3, 1, 1), (num_threads, 1, 1), (out, memory), shared_bytes=num_threads * 16)
    assert module.counts.loaded_bytes == 3 * 16 * num_threads
    assert module.counts.copied_bytes == 3 * 16 * -(-num_threads // 2)
