"""transformers' generate_batch, in a process of its own without a server."""

import contextlib
import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.outcome import Outcome
from bench.core.plan import Plan
from bench.core.summary import Summary, add_processes, summarize
from bench.errors import BenchError
from bench.peers.candidate import Description, describe
from bench.peers.environment import Environment
from bench.peers.processes import Command
from bench.processes import ProcessMeter

NAME = "transformers"
TORCH = "torch==2.13.0"  # the CPU build, as for vLLM
TRANSFORMERS = "transformers==5.24.0"
DRIVER = Path(__file__).parent / "drivers" / "generate_batch.py"
ATTENTION = "sdpa"


def install(environment: Environment) -> None:
    """Raises BenchError."""
    environment.create()
    environment.install(TORCH)
    environment.install(TRANSFORMERS, "accelerate")
    environment.finish()


@dataclass(frozen=True, slots=True)
class GenerateBatch:
    """Prompts go in as token ids, all at once; as many run as the plan has streams, each measured from its admission,
    as a client sees it that asks when its turn has come. Nothing is streamed: its times are those of its own clock."""

    environment: Environment
    model: Path
    num_threads: int
    name: str = field(default=NAME)

    def describe(self) -> Description:
        """Its process."""
        return describe([str(self._command())], self.environment.versions(("transformers", "torch")))

    @contextlib.contextmanager
    def open(self) -> "Iterator[Driver]":
        """With the model loaded. Raises BenchError."""
        with tempfile.TemporaryFile("w+") as log, self._start(log) as process:
            try:
                driver = Driver(process, log)
                driver.read("ready")
                yield driver
            finally:
                process.kill()

    def _start(self, log: Any) -> "subprocess.Popen[str]":
        command = self._command()
        return subprocess.Popen(
            list(command.words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def _command(self) -> Command:
        words = [str(self.environment.python), "-P", str(DRIVER)]
        return Command([*words, str(self.model), str(self.num_threads), ATTENTION])


@dataclass(frozen=True, slots=True)
class Driver:
    """The running process."""

    process: "subprocess.Popen[str]"
    log: Any

    def measure(self, plan: Plan) -> Summary:
        """Raises BenchError."""
        meter = ProcessMeter.of_pids([self.process.pid])
        requests = [[list(each.prompt.token_ids), each.max_tokens] for each in plan.requests]
        order = {"requests": requests, "streams": plan.max_concurrency or len(requests)}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading tells why
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        seconds, outcomes = read_answer(plan, self.read("{"))
        summary = summarize(plan.name, outcomes, seconds, max_concurrency=plan.max_concurrency)
        add_processes(summary, meter.cpu_s(), meter.resident(), meter.peak_resident())
        return summary

    def read(self, beginning: str) -> str:
        """Its next line. Raises BenchError if it is another, or none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(beginning):
            self.log.seek(0)
            words = " | ".join(self.log.read().strip().splitlines()[-3:])
            raise BenchError(f"generate_batch ended: {line.strip() or words or 'without a word'}")
        return line


def read_answer(plan: Plan, line: str) -> tuple[float, list[Outcome]]:
    """Seconds of all, and the outcome of each request, from the driver's line. Raises BenchError."""
    answer = json.loads(line)
    outcomes = []
    for request, (admitted_s, tokens_s) in zip(plan.requests, answer["requests"], strict=True):
        outcome = Outcome(begun_s=admitted_s, num_wanted=request.max_tokens)
        outcome.num_prompt_tokens = request.prompt.num_tokens
        outcome.num_events = outcome.num_usage_tokens = len(tokens_s)
        if len(tokens_s) == request.max_tokens:
            outcome.first_s, outcome.last_s, outcome.ended_s = tokens_s[0], tokens_s[-1], tokens_s[-1]
            outcome.gaps_s = [after - before for before, after in itertools.pairwise(tokens_s)]
        else:
            outcome.error = f"{len(tokens_s)} output tokens instead of {request.max_tokens}"
        outcomes.append(outcome)
    return answer["seconds"], outcomes
