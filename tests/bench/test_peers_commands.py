"""How each peer is installed, started and read, without any of them."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench import workloads
from bench.commands.control_plane import ControlPlaneOptions, streams_plan
from bench.core.plan import Plan, PlannedRequest, Prompt
from bench.errors import BenchError
from bench.peers import dynamo, generate_batch, llama_cpp, ours, suites, vllm
from bench.peers.__main__ import main
from bench.peers.environment import Environment, without
from bench.peers.goals import CONTROL_PLANE, ENGINE
from bench.peers.processes import Command
from bench.prompts import PromptMaker


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An empty one that counts as ready."""
    found = Environment("peer", tmp_path)
    (found.folder / "bin").mkdir(parents=True)
    (found.folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    found.finish()
    return found


def plan(*num_tokens: int, output: int = 3, streams: int | None = 2) -> Plan:
    ids = [tuple(range(num)) for num in num_tokens]
    return Plan("W1", [PlannedRequest(Prompt("", each, len(each)), output) for each in ids], streams)


def option(words: list[str] | tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1]


def test_requirements_without_torch_and_without_extras() -> None:
    lines = [
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        "torch_audio",
        "torchmetrics",
        "numpy",
        'pandas; extra == "bench"',
        "xgrammar==0.2.8; platform_machine == 'x86_64'",
        "mistral_common[image]>=1.11",
    ]
    kept = without(lines, ("torch", "torch-audio"))
    assert kept == ["torchmetrics", "numpy", lines[5], lines[6]]


def test_environment_that_was_not_finished_is_not_ready(tmp_path: Path) -> None:
    unfinished = Environment("vllm", tmp_path)
    (unfinished.folder / "bin").mkdir(parents=True)
    assert not unfinished.is_ready
    with pytest.raises(BenchError, match=r"python -m bench\.peers setup vllm"):
        unfinished.require()


def test_packages_of_an_environment(environment: Environment) -> None:
    folder = environment.site_packages() / "some_peer-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-peer\nVersion: 1.2\nRequires-Dist: numpy>2\n")
    assert environment.versions(["some-peer", "other"]) == {"some-peer": "1.2"}
    assert environment.requirements("some-peer") == ["numpy>2"]
    with pytest.raises(BenchError, match="other"):
        environment.requirements("other")


def test_command_is_shown_as_one_would_type_it() -> None:
    assert str(Command(["a", "b c"], {"X": "1 2", "Y": "3"})) == "X='1 2' Y=3 a 'b c'"


def test_vllm(environment: Environment, tmp_path: Path) -> None:
    peer = vllm.make(environment, tmp_path / "model", [0, 1])
    [command] = peer.commands(1234, tmp_path)
    words = list(command.words)
    assert (option(words, "--port"), option(words, "--host")) == ("1234", "127.0.0.1")
    assert (option(words, "--dtype"), option(words, "--max-num-seqs")) == ("bfloat16", "16")
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert option(words, "--served-model-name") == peer.model


def test_preloads_are_those_that_are_there(tmp_path: Path) -> None:
    assert vllm.find_preloads(tmp_path, [str(tmp_path)]) == []
    (tmp_path / "lib").mkdir()
    openmp, malloc = tmp_path / "lib" / "libiomp5.so", tmp_path / "libtcmalloc.so.4"
    openmp.touch()
    assert vllm.find_preloads(tmp_path, [str(tmp_path)]) == [openmp]
    malloc.touch()
    assert vllm.find_preloads(tmp_path, ["/nowhere", str(tmp_path)]) == [openmp, malloc]


def test_dynamo_is_two_processes_of_one_folder(environment: Environment, tmp_path: Path) -> None:
    peer = dynamo.make(environment, tmp_path / "model", "/v1/chat/completions")
    frontend, mocker = peer.commands(1234, tmp_path)
    assert option(list(frontend.words), "--http-port") == "1234"
    assert option(list(mocker.words), "--speedup-ratio") == "0"
    assert frontend.env["DYN_FILE_KV"] == mocker.env["DYN_FILE_KV"] == str(tmp_path)
    assert option(list(mocker.words), "--model-name") == peer.model
    assert peer.prompt_format == "text", "else only ours would pay for encoding"


def test_llama_cpp_gets_as_many_slots_as_the_workloads_have_streams(environment: Environment, tmp_path: Path) -> None:
    peer = llama_cpp.make(environment, tmp_path / "m.gguf", 2)
    [command] = peer.commands(1234, tmp_path)
    words = list(command.words)
    assert (option(words, "-np"), option(words, "-t"), option(words, "--port")) == ("16", "2", "1234")
    assert option(words, "-m") == str(tmp_path / "m.gguf")


def test_descriptions_name_no_port_and_no_home(environment: Environment) -> None:
    described = llama_cpp.make(environment, Path.home() / "m.gguf", 2).describe()
    assert "--port PORT" in described.commands[0]
    assert "~/m.gguf" in described.commands[0]
    assert str(Path.home()) not in described.commands[0]


def test_batched_bench_has_the_mean_lengths_of_the_plan() -> None:
    assert llama_cpp.lengths(plan(100, 200, output=64)) == ["-npp", "150", "-ntg", "64", "-npl", "2"]


def test_batched_bench_is_read_from_its_json_line() -> None:
    line = {"pp": 150, "tg": 64, "pl": 2, "t": 1.5, "speed_tg": 321.04, "speed": 285.3}
    summary = llama_cpp.read_batched_bench(plan(100, 200), f"build: 1\n\n{json.dumps(line)}\n")
    assert (summary.output_throughput, summary.total_token_throughput) == (321.0, 285.3)
    assert (summary.completed, summary.total_output_tokens, summary.duration) == (2, 128, 1.5)
    assert summary.ttft.p50 is None
    with pytest.raises(BenchError, match="no result"):
        llama_cpp.read_batched_bench(plan(1), "error: no such file")


def stand_in_driver(environment: Environment, script: str) -> None:
    """A program in the place of the environment's Python."""
    environment.python.write_text(f"#!{sys.executable}\n{script}")
    os.chmod(environment.python, 0o755)


def test_generate_batch_is_asked_line_by_line(environment: Environment, tmp_path: Path) -> None:
    stand_in_driver(
        environment,
        """
import json, sys
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    rows = [[0.5, [1.0 + index for index in range(num)]] for ids, num in order["requests"]]
    rows[-1][1].append(9.0) if len(order["requests"][-1][0]) == 99 else None
    print(json.dumps({"seconds": 4.0, "requests": rows}), flush=True)
""",
    )
    peer = generate_batch.GenerateBatch(environment, tmp_path, 2)
    with peer.open() as running:
        summary = running.measure(plan(10, 20))
        assert (summary.completed, summary.failed, summary.total_input_tokens) == (2, 0, 30)
        assert (summary.ttft.p50, summary.itl.p50, summary.output_throughput) == (500.0, 1000.0, 1.5)
        assert summary.resident_mb["total"] > 0
        summary = running.measure(plan(10, 99))
        assert summary.errors == {"4 output tokens instead of 3": 1}


def test_generate_batch_that_cannot_load_says_why(environment: Environment, tmp_path: Path) -> None:
    stand_in_driver(environment, "raise SystemExit('no such model')")
    with (
        pytest.raises(BenchError, match="no such model"),
        generate_batch.GenerateBatch(environment, tmp_path, 2).open(),
    ):
        pytest.fail("it started")


def test_ours_names_its_variant_and_its_options() -> None:
    mine = ours.engine("int8", "m", ["--block-size", "32"])
    assert mine.name == "tokenbus int8"
    assert option(list(mine.options), "--quantization") == "int8"
    assert mine.describe().commands[0].startswith("tokenbus up --engine cpu")
    assert mine.describe().commands[0].endswith("--block-size 32")


def test_goals_are_about_candidates_and_plans_that_exist(prompts: PromptMaker) -> None:
    mine = {f"tokenbus {variant}" for variant in ours.VARIANTS}
    theirs = {*suites.ENGINE_PEERS, llama_cpp.BENCH_NAME}
    for goal in ENGINE:
        assert goal.ours in mine
        assert set(goal.peer.split(" or ")) <= theirs
    assert {goal.plan for goal in ENGINE} <= set(workloads.NAMES)
    plans = {streams_plan(ControlPlaneOptions(input_len=2), num, prompts).name for num in suites.STREAMS}
    assert {goal.plan for goal in CONTROL_PLANE} <= plans
    assert {goal.peer for goal in CONTROL_PLANE} == {"", dynamo.NAME}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["setup", "sglang"], "no peer 'sglang'"),
        (["run", "--suite", "control-plane"], "dynamo is not installed"),
        (["run", "--peers", "llama.cpp"], "llama.cpp is not installed"),
    ],
)
def test_wish_that_cannot_be_fulfilled_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.__main__._model", lambda options: None)
    assert main([*words, "--folder", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
