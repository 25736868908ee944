"""The team of threads: every task once, phases in order, and no processor time while there is nothing to do."""

import ctypes
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.native.build import SOURCES
from tests.waiting import LIMIT_S

_POINTER = ctypes.c_void_p


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The team alone, with what drives it here."""
    file = tmp_path_factory.mktemp("team") / "team.so"
    sources = [Path(__file__).with_name("team_driver.cpp"), *SOURCES.glob("native/*.cpp")]
    flags = ["-std=c++20", "-O2", "-march=x86-64-v3", "-fPIC", "-shared", "-pthread", f"-I{SOURCES.parent}"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(file)], check=True, timeout=LIMIT_S)
    functions = ctypes.CDLL(str(file))
    functions.tokenbus_team_new.restype = _POINTER
    functions.tokenbus_team_delete.argtypes = [_POINTER]
    functions.phases.argtypes = [_POINTER, ctypes.c_int, ctypes.c_int, _POINTER, _POINTER]
    functions.stalled_phases.argtypes = [_POINTER, *[ctypes.c_int] * 4, ctypes.c_bool, _POINTER, _POINTER]
    functions.outlast.argtypes = [_POINTER, *[ctypes.c_int] * 3]
    functions.outlast.restype = ctypes.c_bool
    functions.runs.argtypes = [_POINTER, ctypes.c_int, _POINTER]
    functions.meet.argtypes = [_POINTER, _POINTER]
    functions.wait_for_one.argtypes = [_POINTER, ctypes.c_int]
    return functions


@pytest.fixture
def new_team(library: ctypes.CDLL) -> Iterator[Callable[[int], int]]:
    teams: list[int] = []

    def new(num_threads: int) -> int:
        teams.append(library.tokenbus_team_new(num_threads))
        return teams[-1]

    yield new
    for team in teams:
        library.tokenbus_team_delete(team)


def expected_after(values: NDArray[np.uint64], num_phases: int) -> NDArray[np.uint64]:
    other = (5 * np.arange(len(values)) + 1) % len(values)
    for _ in range(num_phases):
        values = values * np.uint64(3) + values[other]
    return values


@pytest.mark.parametrize("num_threads", range(1, 9))
@pytest.mark.parametrize("num_tasks", [1, 7, 64])
def test_thousands_of_phases_come_in_order(
    library: ctypes.CDLL, new_team: Callable[[int], int], num_threads: int, num_tasks: int
) -> None:
    num_phases = 4001 if num_threads <= 2 else 501  # more threads than processors: each phase waits for the system
    values, num_done = np.arange(num_tasks, dtype=np.uint64), np.zeros(num_tasks, dtype=np.uint64)
    expected = expected_after(values.copy(), num_phases)
    library.phases(new_team(num_threads), num_phases, num_tasks, values.ctypes.data, num_done.ctypes.data)
    assert num_done.tolist() == [num_phases] * num_tasks
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_caller_is_in_every_run(library: ctypes.CDLL, new_team: Callable[[int], int], num_threads: int) -> None:
    calls = np.zeros(num_threads + 1, dtype=np.uint64)
    library.runs(new_team(num_threads), 1000, calls.ctypes.data)
    assert calls[0] == 1000
    assert calls[num_threads] == 0


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_all_come_to_a_run_that_waits_for_them_and_begin_with_their_own_range(
    library: ctypes.CDLL, new_team: Callable[[int], int], num_threads: int
) -> None:
    team, members = new_team(num_threads), np.zeros((num_threads, 2), dtype=np.int32)
    for _ in range(100):
        library.meet(team, members.ctypes.data)
        assert members[:, 0].tolist() == list(range(num_threads))


@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("stalls_commit", [False, True])
def test_a_thread_that_stalls_spoils_nothing(
    library: ctypes.CDLL, new_team: Callable[[int], int], num_threads: int, stalls_commit: bool
) -> None:
    """What it computes late, with what it still sees of an older phase, is dropped."""
    values, num_done = np.arange(24, dtype=np.uint64), np.zeros(24, dtype=np.uint64)
    expected = expected_after(values.copy(), 300)
    library.stalled_phases(
        new_team(num_threads), 300, 24, 10, 3, stalls_commit, values.ctypes.data, num_done.ctypes.data
    )
    assert num_done.tolist() == [300] * 24
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("num_threads", [2, 5])
def test_a_thread_that_stalls_holds_nobody_up(
    library: ctypes.CDLL, new_team: Callable[[int], int], num_threads: int
) -> None:
    assert library.outlast(new_team(num_threads), 100, 6, 60_000)


def test_a_phase_without_tasks_is_one_all_the_same(library: ctypes.CDLL, new_team: Callable[[int], int]) -> None:
    library.phases(new_team(3), 100, 0, None, None)


def test_teams_side_by_side_do_not_meet(library: ctypes.CDLL, new_team: Callable[[int], int]) -> None:
    for team in [new_team(2), new_team(3), new_team(2)]:
        values, num_done = np.ones(10, dtype=np.uint64), np.zeros(10, dtype=np.uint64)
        library.phases(team, 51, 10, values.ctypes.data, num_done.ctypes.data)
        np.testing.assert_array_equal(values, expected_after(np.ones(10, dtype=np.uint64), 51))


def share_of_a_processor(wait: Callable[[], None]) -> float:
    """Of this whole process, all threads, while it waits."""
    used, begun = time.process_time(), time.monotonic()
    wait()
    return (time.process_time() - used) / (time.monotonic() - begun)


def test_an_idle_team_sleeps(library: ctypes.CDLL, new_team: Callable[[int], int]) -> None:
    calls = np.zeros(4, dtype=np.uint64)
    library.runs(new_team(4), 10, calls.ctypes.data)
    assert share_of_a_processor(lambda: time.sleep(0.5)) < 0.2  # four that spin use as much as there is


def test_members_that_wait_for_one_sleep_after_a_while(library: ctypes.CDLL, new_team: Callable[[int], int]) -> None:
    team = new_team(4)
    assert share_of_a_processor(lambda: library.wait_for_one(team, 500)) < 0.2
