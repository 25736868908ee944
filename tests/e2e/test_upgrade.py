"""Release 0.1, out of the history, upgraded process by process under streams; meanwhile both work side by side."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.node.nats_server import free_port
from deploy.node.processes import HealthProbe
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.fold import Fold
from shared.log.verify import verify
from shared.messages.pipeline import Reader
from tests.e2e.streams import Answer, connect, stream
from tests.servers import NatsServer
from tests.stored_models import store_tiny_model
from tests.waiting import LIMIT_S, until
from tests.wire.freeze import ROOT, unpack_commit

RELEASE_0_1 = "de5fae8"
NUM_CLIENTS = 3  # of each gateway
NUM_TOKENS = 60
REFUSED_WAIT_S = 0.2
MODEL_OPTIONS = {"tokenizer": ("--model", "tiny"), "detokenizer": ("--model", "tiny"), "worker": ("--model", "tiny")}
MORE_OPTIONS = {
    "worker": ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10", "--max-model-len", "400"),
    "scheduler": ("--snapshot-interval-s", "1", "--log-retention-s", "2"),
}


@dataclass(slots=True)
class Member:
    """One process of one release. port: of its HTTP API, 0 for all but gateways."""

    name: str
    process: subprocess.Popen[bytes]
    probe: HealthProbe
    port: int = 0


class Fleet:
    """Processes of two releases on one bus. code: folders of the releases by name."""

    def __init__(self, server: NatsServer, code: dict[str, Path], repository: Path, folder: Path) -> None:
        self._server = server
        self._code = code
        self._repository = repository
        self._folder = folder
        self.members: dict[str, Member] = {}

    def start(self, release: str, role: str, index: int) -> Member:
        """Start a process."""
        name = f"{role}-{index}-{release}"
        health_port, port = free_port(), free_port() if role == "gateway" else 0
        options = ["--nats", self._server.url, "--name", name, "--health-port", str(health_port)]
        options += [*MODEL_OPTIONS.get(role, ()), *MORE_OPTIONS.get(role, ())]
        if role in MODEL_OPTIONS:
            options += ["--model-repository", str(self._repository)]
        if port:
            options += ["--port", str(port)]
        code = self._code[release]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"services.{role}", *options],
                cwd=code,
                env=os.environ | {"PYTHONPATH": str(code)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        member = self.members[name] = Member(name, process, HealthProbe(health_port), port)
        return member

    async def ready(self, member: Member) -> None:
        """Return once it can do its work."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + LIMIT_S
        while not await member.probe.is_ready():
            assert member.process.poll() is None and loop.time() < limit, self.log(member.name)
            await asyncio.sleep(0.05)

    async def retire(self, name: str) -> None:
        """SIGTERM; what it does is finished, and it goes by itself."""
        member = self.members.pop(name)
        member.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(member.process.wait, LIMIT_S)
        assert status == 0, self.log(name)

    def log(self, name: str) -> str:
        """The end of what it said."""
        return f"{name}: {(self._folder / f'{name}.log').read_text()[-3000:]}"

    def kill_all(self) -> None:
        """Nothing is left behind."""
        for member in self.members.values():
            member.process.kill()
            member.process.wait()


class Clients:
    """Streams without end at each gateway, each as soon as the one before it has ended."""

    def __init__(self) -> None:
        self.answers: dict[int, list[Answer]] = {}
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, port: int) -> None:
        """Ask at this gateway until stop."""
        self.answers[port] = []
        self._tasks += [asyncio.create_task(self._ask(port, number)) for number in range(NUM_CLIENTS)]

    async def _ask(self, port: int, number: int) -> None:
        headers = {"X-Tokenbus-Resumable": "1"} if number == 0 else {}
        async with connect(f"http://127.0.0.1:{port}") as client:
            client.headers.update(headers)
            while not self._stopping.is_set():
                body: dict[str, Any] = {
                    "model": "tiny",
                    "prompt": f"client {number} at {port}",
                    "max_tokens": NUM_TOKENS,
                    "min_tokens": NUM_TOKENS,
                    "ignore_eos": True,
                }
                answer = await stream(client, "/v1/completions", body)
                if "service_unavailable_error" in answer.error and not answer.id:
                    await asyncio.sleep(REFUSED_WAIT_S)  # refused, which busy cores may bring about, is not lost
                else:
                    self.answers[port].append(answer)

    async def served(self) -> None:
        """Return once each client of each gateway has begun and finished a stream from now on; raises what failed."""
        before = {port: len(answers) for port, answers in self.answers.items()}
        wanted = 2 * NUM_CLIENTS
        await until(
            lambda: all(len(self.answers[port]) >= before[port] + wanted for port in before) or self.failed,
            "streams",
        )
        assert not self.failed, self.failed

    @property
    def failed(self) -> list[str]:
        """What went wrong for any client."""
        every = (answer for answers in self.answers.values() for answer in answers)
        return [
            answer.error or f"{answer.id}: {len(answer.token_ids)} tokens, {answer.finish_reason}"
            for answer in every
            if not answer.whole or len(answer.token_ids) != NUM_TOKENS or answer.finish_reason != "length"
        ]

    async def stop(self) -> None:
        """Let the last streams end."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)


def unpack_release(commit: str, folder: Path) -> None:
    """The code of a release. A clone without its history cannot prove this."""
    try:
        unpack_commit(commit, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        pytest.fail(f"no commit {commit} in this clone; fetch the whole history (git fetch --unshallow): {said!r}")


async def kept_request_is_left(server: NatsServer, port: int) -> None:
    """A client of the new gateway goes away from a request that is kept for it, and the log gets a record of that,
    which release 0.1 does not know."""
    body = {"model": "tiny", "prompt": "left", "max_tokens": 300, "min_tokens": 300, "ignore_eos": True}
    answer = Answer()
    readers: list[Reader] = []
    bus = await Bus.connect(server.url, "verify-1")
    tail = NatsLog(bus, "s0").tail(
        Fold(),
        lambda change: readers.append(change.record) if isinstance(change.record, Reader) else None,
        lambda: None,
    )
    try:
        await tail.start()
        async with connect(f"http://127.0.0.1:{port}") as client:
            client.headers["X-Tokenbus-Resumable"] = "1"
            reading = asyncio.create_task(stream(client, "/v1/completions", body, answer))
            await until(lambda: len(answer.token_ids) >= 5, "the first tokens")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        request_id = answer.id.removeprefix("cmpl-")
        await until(lambda: any(r.request_id == request_id and not r.reads for r in readers), "the record")
        await tail.stop()
    finally:
        await bus.close()


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_release_0_1_is_upgraded_process_by_process(nats_server: NatsServer, tmp_path: Path) -> None:
    await asyncio.to_thread(store_tiny_model, tmp_path, "LlamaForCausalLM")
    old_code = tmp_path / "release_0_1"
    await asyncio.to_thread(unpack_release, RELEASE_0_1, old_code)
    logs = tmp_path / "logs"
    logs.mkdir()
    fleet = Fleet(nats_server, {"old": old_code, "new": ROOT}, tmp_path / "models", logs)
    roles = [(role, index) for role in ("detokenizer", "tokenizer", "worker", "scheduler") for index in range(2)]
    clients = Clients()
    try:
        old = [fleet.start("old", role, index) for role, index in [*roles, ("gateway", 0)]]
        for member in old:
            await fleet.ready(member)
        clients.begin(old[-1].port)
        await clients.served()

        new_gateway = fleet.start("new", "gateway", 0)
        await fleet.ready(new_gateway)
        clients.begin(new_gateway.port)
        await kept_request_is_left(nats_server, new_gateway.port)
        await clients.served()

        for role, index in roles:
            await fleet.ready(fleet.start("new", role, index))
            await clients.served()
            await fleet.retire(f"{role}-{index}-old")
            await clients.served()

        await clients.stop()
        await fleet.retire("gateway-0-old")
    finally:
        fleet.kill_all()
    assert not clients.failed
    await check_log(nats_server, clients)


async def check_log(server: NatsServer, clients: Clients) -> None:
    """The log is whole, and every stream that it still holds is what its client read. (malformed counts what the older
    scheduler did not know; it is in that one's snapshots.)"""
    bus = await Bus.connect(server.url, "verify-1")
    try:
        report = await verify(NatsLog(bus, "s0"))
    finally:
        await bus.close()
    assert (report.lost, report.duplicated, report.foreign, report.prefix_mismatched) == (0, 0, 0, 0)
    answers = [answer for answers in clients.answers.values() for answer in answers]
    logged = [(answer, report.requests.get(answer.id.removeprefix("cmpl-"))) for answer in answers]
    held = [(answer, request) for answer, request in logged if request is not None]
    assert held
    for answer, request in held:
        assert (request.token_ids, request.finish_reason) == (answer.token_ids, "length")
