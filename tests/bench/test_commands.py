"""`tokenbus bench` as it is typed."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench import command
from bench.commands import suite
from bench.commands.frame import split
from deploy.cli import main as cli
from tests.bench.stand_in import StandInServer, stand_in
from tests.nodes import RunningNode
from tests.tiny_models import make_tiny_tokenizer
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[StandInServer]:
    with stand_in() as running:
        yield running


@pytest.fixture
def against(server: StandInServer, tmp_path: Path) -> list[str]:
    """Options for a stand-in."""
    make_tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return ["--base-url", server.url, "--tokenizer", str(tmp_path), "--backend", "openai"]


def bench(*words: str) -> int:
    """Its exit status, wherever it comes from."""
    try:
        return cli.main(["bench", *words])
    except SystemExit as end:
        return int(str(end.code))


@pytest.mark.parametrize("word", sorted(command.COMMANDS))
def test_every_command_has_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(word, "--help") == 0
    assert f"usage: tokenbus bench {word}" in capsys.readouterr().out


def test_what_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("server") == 2
    assert "'server'" in capsys.readouterr().err
    assert bench() == 2
    assert bench("--help") == 0


@pytest.mark.parametrize("options", [["--result-dir", "x"], ["--rounds=2", "--plot"], ["--"]])
def test_options_without_a_command_are_the_suites(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(suite, "main", lambda words: given.append(words) or 0)
    assert bench(*options) == bench("suite", *options) == 0
    assert given == [options, options]


def test_an_option_that_the_suite_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--num-prompts", "3") == 2
    told = capsys.readouterr().err
    assert "tokenbus bench suite" in told
    assert "--num-prompts" in told


def test_a_file_of_results_and_what_stands_in_it(
    against: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wishes = ["--num-prompts", "6", "--random-input-len", "9", "--random-output-len", "7", "--goodput", "ttft:60000"]
    where = ["--result-dir", str(tmp_path), "--result-filename", "a.json", "--label", "peer", "--metadata", "k=v"]
    pids = ["--pids", str(os.getpid())]
    assert bench("serve", *against, *wishes, *where, *pids, "--request-rate", "200", "--burstiness", "0.5") == 0
    shown = capsys.readouterr().out
    assert "output tokens/s" in shown
    assert "peer" in shown
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["bench"], found["label"], found["metadata"]) == ("serve", "peer", {"k": "v"})
    assert found["machine"]["cores"] >= 1
    row = found["rows"][0]
    assert (row["completed"], row["total_output_tokens"], row["goodput_share"]) == (6, 42, 1.0)
    assert {"p50", "p90", "p99"} <= row["itl"].keys()
    assert row["cpu_us_per_output_token"]["total"] >= 0
    assert bench("compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")) == 0
    assert "| output tokens/s |" in capsys.readouterr().out


def test_latency_throughput_and_saturation(
    against: list[str], server: StandInServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("latency", *against, "--batch-size", "3", "--num-iters", "2", "--num-iters-warmup", "1") == 0
    assert "A batch of 3 takes" in capsys.readouterr().out
    assert bench("throughput", *against, "--num-prompts", "5", "--input-len", "4", "--output-len", "5") == 0
    assert sum(body["max_tokens"] == 5 for _, body, _ in server.bodies) == 5
    limits = ["--goodput", "ttft:60000", "--rates", "20", "40", "--step-s", "0.2"]
    assert bench("saturation", *against, *limits) == 0
    assert "Knee: 40 requests/s, goodput 100.0%" in capsys.readouterr().out


def test_refusals_past_the_knee_are_no_failure_of_the_measurement(
    against: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--model", "full", "--num-warmups", "0", "--rates", "20", "--step-s", "0.2"]
    assert bench("saturation", *against, *limits) == 0
    assert "refused 100.0%" in capsys.readouterr().out


def test_failed_requests_fail_the_command(against: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", *against, "--model", "torn", "--num-warmups", "0", "--num-prompts", "2") == 1
    assert "2 failed: the connection broke off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["serve", "--no-such-option"], 2, "--no-such-option"),
        (["serve", "--goodput", "ttft"], 1, "'ttft' is no objective"),
        (["serve", "--percentile-metrics", "tft"], 1, "'tft' is none of ttft"),
        (["serve", "--dataset-name", "sharegpt"], 1, "needs --dataset-path"),
        (["serve", "--metadata", "x"], 1, "--metadata: 'x' is not KEY=VALUE"),
        (["serve", "--extra-body", "[]"], 1, "--extra-body is no JSON object"),
        (["serve", "--pids", "1073741824"], 1, "there is no process 1073741824"),
        (["serve", "--", "--engine", "fake"], 1, "leave out --base-url"),
        (["serve", "--save-result", "--result-dir", "/dev/null/x"], 1, "--result-dir: /dev/null/x cannot be made"),
        (["serve", "--workload", "W9"], 2, "--workload: ['W9'] is not accepted: expected some of W1, W2, W3"),
        (["serve", "--model", "torn"], 1, "fails: the connection broke off"),
        (["throughput", "--dataset-name", "timed_trace"], 1, "`tokenbus bench serve`"),
    ],
)
def test_mistakes_end_in_one_line(
    words: list[str], status: int, error: str, against: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = words.index("--") if "--" in words else len(words)
    assert bench(*words[:place], *against, *words[place:]) == status
    told = capsys.readouterr().err
    assert error in told
    assert told.count("\n") == 1


def test_nobody_at_the_base_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--base-url", "http://127.0.0.1:1") == 1
    assert "names no model" in capsys.readouterr().err


def test_a_base_url_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--base-url", "foo") == 2
    assert "--base-url: 'foo' is not accepted: expected a URL such as" in capsys.readouterr().err


def test_no_results_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("compare", str(tmp_path / "none.json")) == 1
    assert "none.json" in capsys.readouterr().err


def test_a_node_is_measured_and_its_access_log_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ["--engine", "fake", "--fake-step-ms", "1", "--access-log", "--log-format", "json"]
    with RunningNode(tmp_path / "node", *engine) as node:
        where = ["--base-url", node.url, "--data-dir", str(node.folder.root)]
        out = ["--result-dir", str(tmp_path), "--result-filename"]
        lengths = ["--num-prompts", "8", "--random-input-len", "20", "--random-output-len", "10"]
        assert bench("serve", *where, *lengths, "--num-warmups", "0", "--max-concurrency", "4", *out, "a.json") == 0
        trace = tmp_path / "trace.jsonl"
        assert bench("convert", str(node.folder.log("gateway-0")), "--output", str(trace)) == 0
        assert "8 requests over" in capsys.readouterr().out
        replay = ["--dataset-name", "timed_trace", "--dataset-path", str(trace), "--num-warmups", "0"]
        assert bench("serve", *where, *replay, *out, "b.json") == 0
    first, again = (json.loads((tmp_path / name).read_text())["rows"][0] for name in ("a.json", "b.json"))
    for row in (first, again):
        assert (row["completed"], row["total_input_tokens"], row["total_output_tokens"]) == (8, 160, 80)
        assert row["num_events"] == 80
        names = {"gateway", "tokenizer", "scheduler", "worker", "detokenizer", "nats-server", "total"}
        assert row["cpu_us_per_output_token"].keys() == names
        assert row["resident_mb"]["total"] > 100


def test_a_log_with_nothing_to_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("serving\n")
    assert bench("convert", str(tmp_path / "log"), "--output", str(tmp_path / "trace")) == 1
    assert "no answered request" in capsys.readouterr().err


def test_a_log_is_replayed_with_what_was_rotated_out_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        '{{"event":"request","path":"/v1/completions","status":200,"timestamp":"2026-11-30T12:00:{0:02}Z",'
        '"num_prompt_tokens":{0},"num_output_tokens":1}}\n'
    )
    log, trace = tmp_path / "gateway-0.log", tmp_path / "trace"
    log.write_text(line.format(30))
    (tmp_path / "gateway-0.log.1").write_text(line.format(20))
    (tmp_path / "gateway-0.log.10.gz").write_bytes(gzip.compress(line.format(10).encode()))
    (tmp_path / "gateway-1.log.1").write_text(line.format(40))

    def lengths(*words: str) -> list[int]:
        assert bench("convert", *words, "--output", str(trace)) == 0
        return [json.loads(text)["input_length"] for text in trace.read_text().splitlines()]

    assert lengths(str(log)) == [10, 20, 30]
    assert capsys.readouterr().out.endswith(f"read {log}.10.gz, {log}.1, {log}\n")
    assert lengths(str(log), f"{log}.1") == [10, 20, 30]
    assert lengths(str(log), "--no-rotated") == [30]
    assert lengths(f"{log}.10.gz", "--no-rotated") == [10]
    (tmp_path / "gateway-0.log.2.gz").write_bytes(gzip.compress(line.format(10).encode())[:20])
    assert bench("convert", str(log), "--output", str(trace)) == 1
    assert capsys.readouterr().err.startswith(f"tokenbus bench convert: {log}.2.gz: ")


def test_convert_says_what_is_in_no_access_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("convert", "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "What was published on NATS" in told
    assert "is in no access log" in told


def test_the_suite_is_made_of_commands_that_exist() -> None:
    for words in suite.commands(Path("x"), 2, True):
        assert words[0] in command.COMMANDS
        own, node = split(words)
        assert "--plot" in own
        assert "--plot" not in node


@pytest.mark.parametrize("words", [["suite", "--result-dir", "x"], ["control-plane", "--streams", "1"]])
def test_sigterm_leaves_no_node_behind(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.cli.main", "bench", *words]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + LIMIT_S
        while not (pids := list(tmp_path.glob("tokenbus-bench-*/pids/worker-0.pid"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        worker = int(pids[0].read_text())
        process.terminate()
        assert process.wait(LIMIT_S) == 130
    assert not psutil.pid_exists(worker)
    assert not list(tmp_path.glob("tokenbus-bench-*"))
