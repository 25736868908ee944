"""Parts as processes: whatever becomes of one, what it found is kept and the others run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu_check import command, runner
from bench.gpu_check.parts import PARTS, Part
from bench.gpu_check.runner import Outcome, Run, run_all, run_part
from tests.processes import wait_until_gone
from tests.waiting import LIMIT_S, until_now

WRITES = """
import sys, time, pathlib
sys.path.insert(0, {root!r})
from bench.gpu_check.findings import Findings
findings = Findings(pathlib.Path({file!r}))
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, is_dry=False, deadline_s=time.monotonic() + LIMIT_S)


def part(limit_s: float = LIMIT_S) -> Part:
    return Part("a", "A part", "nothing", limit_s)


def outcome(run: Run, script: str, limit_s: float = LIMIT_S) -> Outcome:
    begin = WRITES.format(root=str(ROOT), file=str(run.folder / "a.json"))
    return run_part(part(limit_s), run, [sys.executable, "-c", begin + script])


def test_a_part_passes_with_all_of_its_checks(run: Run) -> None:
    found = outcome(run, 'findings.check("one", True); findings.row("table", a=1.0)')
    assert (found.status, found.problem) == ("passed", "")
    assert [check.what for check in found.found.checks] == ["one"]
    assert found.found.tables[0].rows == [[1.0]]


def test_a_part_fails_with_one_of_its_checks(run: Run) -> None:
    assert outcome(run, 'findings.check("one", True); findings.check("two", False)').status == "failed"


def test_a_part_that_has_nothing_to_do_says_so(run: Run) -> None:
    assert outcome(run, 'findings.skip("no such library")').status == "skipped"


def test_a_part_that_breaks_keeps_what_it_found_and_says_why(run: Run) -> None:
    found = outcome(run, 'findings.check("one", True); raise RuntimeError("the device is lost")')
    assert found.status == "failed"
    assert [check.what for check in found.found.checks] == ["one"]
    assert "the device is lost" in found.problem
    assert "exit status 1" in found.problem


def test_a_part_that_is_killed_failed(run: Run) -> None:
    assert "exit status -9" in outcome(run, "import os; os.kill(os.getpid(), 9)").problem


def test_a_part_that_hangs_is_ended_with_all_it_started_and_keeps_what_it_found(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = run.folder / "pid"

    def until_it_hangs(process: object, run: Run, limit_s: float | None) -> None:
        until_now(pid_file.exists, "the part's child")

    monkeypatch.setattr(runner, "_wait", until_it_hangs)
    script = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
findings.check("one", True)
new = pathlib.Path({str(pid_file)!r} + ".new")
new.write_text(str(child.pid))
new.rename({str(pid_file)!r})
time.sleep(600)
"""
    found = outcome(run, script)
    assert found.status == "timed out"
    assert [check.what for check in found.found.checks] == ["one"]
    assert wait_until_gone([int(pid_file.read_text())]) == []


def test_a_process_is_waited_for_until_its_limit_or_until_all_is_stopped(run: Run) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps) as process:
        assert runner._wait(process, run, 0.2) is None
        run.stopped.set()
        assert runner._wait(process, run, None) is None
        process.kill()
    assert runner._wait(process, run, LIMIT_S) == -signal.SIGKILL


def test_without_time_left_a_part_is_not_run(tmp_path: Path) -> None:
    found = run_part(part(), Run(tmp_path, is_dry=False, deadline_s=time.monotonic() + 1), ["/nowhere"])
    assert found.status == "not run"


def test_no_part_gets_more_than_what_is_left_of_all_time(tmp_path: Path) -> None:
    deadline_s = time.monotonic() + 10
    run = Run(tmp_path, is_dry=False, deadline_s=deadline_s)
    limit_s = run.limit_of(part(30)) or 0
    assert deadline_s - time.monotonic() <= limit_s <= 10
    assert run.limit_of(part(5)) == 5
    assert Run(tmp_path, is_dry=True, deadline_s=None).limit_of(part()) is None


@pytest.mark.parametrize("is_dry", [False, True])
def test_one_part_after_the_other_is_reported_in_order(
    is_dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runner, "command_of", lambda part, run: [sys.executable, "-c", f"raise SystemExit({part.limit_s})"]
    )
    parts = [Part("a", "A", "a", LIMIT_S), Part("b", "B", "b", 0.0), Part("c", "C", "c", LIMIT_S)]
    seen: list[str] = []
    run = Run(tmp_path, is_dry, None if is_dry else time.monotonic() + 2 * LIMIT_S)
    found = run_all(parts, run, lambda outcome: seen.append(outcome.name))
    assert seen == [each.name for each in found] == ["a", "b", "c"]
    assert found[0].status == found[2].status == "failed"


def test_limits_of_all_parts_are_below_eight_minutes() -> None:
    assert sum(part.limit_s for part in PARTS) <= command.TOTAL_LIMIT_S < 480
    assert len({part.name for part in PARTS}) == len({part.module for part in PARTS}) == len(PARTS)
    for each in PARTS:
        assert (
            "\ndef run(findings: Findings, where: Where) -> None:"
            in (ROOT / "bench/gpu_check" / f"{each.module}.py").read_text()
        ), each.name


def test_without_a_device_it_says_so_and_ends_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_device", dict)
    assert command.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


def test_a_misspelt_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--dry-run", "kernel"])
    assert "kernel" in capsys.readouterr().err


def test_some_parts_alone_end_in_files_and_sigterm_ends_a_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.gpu_check", "--dry-run", "--result-dir", str(tmp_path), "--name", "x"]
    done = subprocess.run([*words, "attention-flashinfer"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-x.json").read_text())
    assert [(each["name"], each["status"]) for each in found["parts"]] == [("attention-flashinfer", "skipped")]
    assert "attention-flashinfer" not in (text := (tmp_path / "gpu-x.md").read_text()) and "FlashInfer" in text
    with subprocess.Popen([*words, "idle-gap"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the size: it has begun
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
