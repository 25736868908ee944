"""One side of a comparison: something that can be started, measured and stopped."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from bench.client.load import run_load
from bench.client.target import Backend, PromptFormat, Target
from bench.core.plan import Plan, PlannedRequest, Prompt
from bench.core.summary import Summary
from bench.errors import BenchError
from bench.measure import measure
from bench.peers.processes import Command, ProcessGroups, running
from bench.processes import ProcessMeter
from deploy.node.nats_server import free_port

CHECKOUT = Path(__file__).parents[2]
READY_LIMIT_S = 600.0  # vLLM compiles for a minute and a half at its first start
POLL_S = 0.25
PROBE = Plan("probe", [PlannedRequest(Prompt("Hello", (), 1), 1)], 1)


class Description(msgspec.Struct, frozen=True):
    """How a candidate was run: command lines as typed, versions of what matters."""

    commands: list[str]
    versions: dict[str, str]


def describe(commands: Sequence[str], versions: Mapping[str, str]) -> Description:
    """With ~ for the user's home, and paths within this checkout from its root on: results are published."""
    checkout, home = f"{CHECKOUT}/", str(Path.home())
    return Description([command.replace(checkout, "").replace(home, "~") for command in commands], dict(versions))


class Measured(Protocol):
    """A candidate that is running."""

    def measure(self, plan: Plan) -> Summary:
        """The plan once. Raises BenchError."""
        ...


class Candidate(Protocol):
    """name: in every table."""

    @property
    def name(self) -> str: ...

    def describe(self) -> Description:
        """Without starting it."""
        ...

    def open(self) -> AbstractContextManager[Measured]:
        """Started and answering while the context lasts. Raises BenchError."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers, and its processes."""

    target: Target
    meter: ProcessMeter

    def measure(self, plan: Plan) -> Summary:
        """Through the common client."""
        return measure(self.target, plan, self.meter)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPeer:
    """A peer with an HTTP server. commands: from its port and an empty folder. model: the name that it serves."""

    name: str
    backend: Backend
    model: str
    commands: Callable[[int, Path], Sequence[Command]]
    versions: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""
    prompt_format: PromptFormat = "auto"
    ready_limit_s: float = READY_LIMIT_S

    def describe(self) -> Description:
        """With PORT and FOLDER in the place of what each start chooses."""
        commands = [str(each).replace("port 0", "port PORT") for each in self.commands(0, Path("FOLDER"))]
        return describe(commands, self.versions)

    @contextlib.contextmanager
    def open(self) -> Iterator[Served]:
        """Raises BenchError if it ends or does not answer in time."""
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="tokenbus-peer-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with running(self.commands(port, folder), folder) as groups:
                target = Target(
                    base_url=f"http://127.0.0.1:{port}",
                    model=self.model,
                    backend=self.backend,
                    endpoint=self.endpoint,
                    prompt_format=self.prompt_format,
                )
                wait_for_answer(target, groups, self.ready_limit_s)
                yield Served(target, ProcessMeter.of_pids(groups.pids))


def wait_for_answer(target: Target, groups: ProcessGroups, limit_s: float) -> None:
    """Ask for one token until it comes: the one sign of readiness that all servers share. Raises BenchError."""
    asked = Target(base_url=target.base_url, model=target.model, backend=target.backend, prompt_format="text")
    end = time.monotonic() + limit_s
    while True:
        groups.check()
        [outcome] = run_load(asked, PROBE, max(1.0, end - time.monotonic())).outcomes
        if outcome.is_ok:
            return
        if time.monotonic() > end:
            raise BenchError(f"no answer within {limit_s:g} s ({outcome.error}): {groups.last_words()}")
        time.sleep(POLL_S)
