"""The recipes that run until they are stopped: a signal that only just gets reaches the command."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0
COMMAND = """#!{python}
import signal, sys, time
def stop(number, frame):
    print("stopped in order", flush=True)
    raise SystemExit(3)
signal.signal(signal.SIGTERM, stop)
print("runs", *sys.argv[1:], flush=True)
time.sleep(60)
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("words", [["demo"], ["up", "--port", "0"]])
def test_sigterm_of_just_stops_what_it_runs(words: list[str], tmp_path: Path) -> None:
    shutil.copy(ROOT / "justfile", tmp_path)
    write_program(tmp_path / "deploy/setup/venv.sh", "exit 0\n")
    write_program(tmp_path / ".venv/bin/python", "#!/bin/sh\nexit 0\n")
    write_program(tmp_path / ".venv/bin/tokenbus", COMMAND.format(python=sys.executable))
    output = tmp_path / "output"
    just = str(Path(sys.executable).parent / "just")
    with output.open("wb") as file, subprocess.Popen([just, *words], cwd=tmp_path, stdout=file, stderr=file) as process:
        deadline = time.monotonic() + LIMIT_S
        while "\n" not in output.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    assert output.read_text().splitlines()[:2] == [" ".join(["runs", *words]), "stopped in order"]
