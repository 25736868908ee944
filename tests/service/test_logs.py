"""What a log must not hold."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from shared.logs import configure_logging, get_logger
configure_logging("info", sys.argv[1])
def handle(prompt):
    raise ValueError("boom")
try:
    handle("the secret" + " prompt")
except ValueError:
    get_logger().exception("request failed")
"""


@pytest.mark.parametrize("format", ["console", "json"])
def test_tracebacks_show_no_local_variables(format: str) -> None:
    """They would carry prompts into the log."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, format], capture_output=True, text=True, check=True)
    assert "request failed" in done.stderr and "ValueError" in done.stderr and "boom" in done.stderr
    assert "the secret prompt" not in done.stderr
