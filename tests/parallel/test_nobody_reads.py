"""Ranks whose words nobody reads any more, since what collects their log has died: they end as others do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

from services.worker.config import WorkerConfig
from services.worker.parallel.orders import Join, to_bytes
from tests.waiting import LIMIT_S

END = """
import os, sys, threading
from services.worker.parallel.ranks import end_process
from shared.logs import configure_logging

configure_logging("info", "console")
thread = threading.Thread(target=end_process, args=(1, int(sys.argv[1])))
thread.start()
thread.join()
os._exit(99)
"""
NO_MODEL = Join(1, 2, "", "1", WorkerConfig(model="none-such", model_repository="/none-such"))


@pytest.fixture
def unread() -> Iterator[IO[bytes]]:
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        yield pipe


@pytest.mark.parametrize(("status", "expected"), [(-9, 1), (0, 1), (2, 2)])
def test_a_rank_that_has_ended_ends_the_worker(unread: IO[bytes], status: int, expected: int) -> None:
    arguments = [sys.executable, "-c", END, str(status)]
    done = subprocess.run(arguments, stdout=unread, stderr=unread, timeout=LIMIT_S, check=False)
    assert done.returncode == expected


@pytest.mark.parametrize("order", [b"\x05\x00\x00\x00wrong", to_bytes(NO_MODEL)], ids=["no order", "no model"])
def test_what_goes_wrong_in_a_rank_ends_it(unread: IO[bytes], order: bytes) -> None:
    """With its pipe still open."""
    arguments = [sys.executable, "-m", "services.worker.rank"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=unread, stderr=unread) as process:
        assert process.stdin is not None
        process.stdin.write(order)
        process.stdin.flush()
        try:
            assert process.wait(LIMIT_S) == 1
        finally:
            process.kill()
