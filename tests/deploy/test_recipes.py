"""Recipes: what reaches the command behind them, signals among it."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
COMMAND = """#!{python}
import signal, sys, time
def stop(number, frame):
    print("stopped in order", flush=True)
    raise SystemExit(3)
signal.signal(signal.SIGTERM, stop)
print("runs", *sys.argv[1:], flush=True)
time.sleep({life_s})
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_tree(folder: Path, tokenbus: str) -> str:
    """Our justfile over programs that do nothing but this `tokenbus`; the path of just."""
    shutil.copy(ROOT / "justfile", folder)
    write_program(folder / "deploy/setup/venv.sh", "exit 0\n")
    write_program(folder / ".venv/bin/python", "#!/bin/sh\nexit 0\n")
    write_program(folder / ".venv/bin/tokenbus", tokenbus)
    return str(Path(sys.executable).parent / "just")


@pytest.mark.parametrize("words", [["demo"], ["up", "--port", "0"]])
def test_sigterm_of_just_stops_what_it_runs(words: list[str], tmp_path: Path) -> None:
    just = make_tree(tmp_path, COMMAND.format(python=sys.executable, life_s=2 * LIMIT_S))
    output = tmp_path / "output"
    with output.open("wb") as file, subprocess.Popen([just, *words], cwd=tmp_path, stdout=file, stderr=file) as process:
        deadline = time.monotonic() + LIMIT_S
        while "\n" not in output.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    assert output.read_text().splitlines()[:2] == [" ".join(["runs", *words]), "stopped in order"]


@pytest.mark.parametrize(
    ("words", "given"), [([], "suite"), (["--result-dir", "x"], "--result-dir x"), (["--help"], "--help")]
)
def test_bench_is_the_suite_unless_told_otherwise(words: list[str], given: str, tmp_path: Path) -> None:
    """Options alone replace the recipe's word: `tokenbus bench` takes them for the suite's."""
    just = make_tree(tmp_path, '#!/bin/sh\necho "$@"\n')
    done = subprocess.run([just, "bench", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"bench {given}\n"
