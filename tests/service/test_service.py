"""The life of a service process: probes, NATS service API, drain, exit status."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.node.nats_server import free_port
from shared.bus.client import Bus
from shared.stop_signals import SAME_STOP_S
from tests.servers import NatsServer
from tests.waiting import LIMIT_S


class Sample:
    """The sample service as a process."""

    def __init__(self, log: Path, url: str, *options: str) -> None:
        self.log_path = log
        self.health_port = free_port()
        argv = ["-m", "tests.service.sample_service", "--nats", url, "--log-format", "json"]
        argv += ["--health-port", str(self.health_port), *options]
        with log.open("wb") as file:
            self.process = subprocess.Popen([sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; (0, b"") while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=LIMIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def wait_for(self, path: str, status: int) -> bytes:
        """The body once the path answers with this status."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            got, body = self.get(path)
            if got == status:
                return body
            time.sleep(0.02)
        raise AssertionError(f"{path} never answered {status}: {self.log()}")

    def wait_for_words(self, words: str) -> None:
        """Until the log has them."""
        deadline = time.monotonic() + LIMIT_S
        while words not in self.log():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit status after a signal."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@pytest.fixture
def processes() -> Iterator[list[Sample]]:
    """Samples that are gone after the test."""
    started: list[Sample] = []
    yield started
    for sample in started:
        sample.process.kill()
        sample.process.wait()


def test_probes_then_drain(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", nats_server.url)
    processes.append(sample)
    assert json.loads(sample.wait_for("/ready", 200)) == {"ready": True, "missing": []}
    health = json.loads(sample.get("/health")[1])
    assert (health["service"], health["nats"], health["model"]) == ("sample", True, "none")
    assert b"python_info" in sample.get("/metrics")[1]
    assert sample.get("/live")[0] == 200
    assert sample.get("/other")[0] == 404
    assert sample.stop() == 0
    events = [json.loads(line) for line in sample.log().splitlines()]
    assert [event["event"] for event in events][-2:] == ["draining", "stopped"]
    assert all({"timestamp", "level", "service", "instance"} <= event.keys() for event in events)


def gauge(metrics: bytes, name: str) -> float:
    line = next(line for line in metrics.decode().splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def test_gauges_of_what_a_process_holds(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    """Invariant I4 is read from these: they move with what they count, and come back."""
    sample = Sample(tmp_path / "log", nats_server.url)
    processes.append(sample)
    sample.wait_for("/ready", 200)
    before = sample.get("/metrics")[1]
    assert gauge(before, "tokenbus_bus_subscriptions") >= 9, "three verbs of the NATS service API, each in three forms"
    assert gauge(before, "tokenbus_asyncio_tasks") >= 2
    assert gauge(before, "process_resident_memory_bytes") > 1e6
    idle = [socket.create_connection(("127.0.0.1", sample.health_port)) for _ in range(5)]
    moving = ("process_open_fds", "tokenbus_asyncio_tasks")
    during = sample.get("/metrics")[1]
    assert all(gauge(during, name) >= gauge(before, name) + 5 for name in moving)
    for connection in idle:
        connection.close()
    deadline = time.monotonic() + LIMIT_S
    while any(gauge(sample.get("/metrics")[1], name) != gauge(before, name) for name in moving):
        assert time.monotonic() < deadline, "descriptors or tasks did not return to their baseline"
    assert sample.stop() == 0


async def test_the_bus_counts_its_subscriptions(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url, "test")
    before = bus.num_subscriptions
    subscriptions = [await bus.subscribe(f"test.{index}", lambda *_: None) for index in range(3)]
    assert bus.num_subscriptions == before + 3
    for subscription in subscriptions:
        await subscription.unsubscribe()
    assert bus.num_subscriptions == before
    await bus.close()


def test_live_but_not_ready_without_nats(tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", f"nats://127.0.0.1:{free_port()}")
    processes.append(sample)
    sample.wait_for("/live", 200)
    assert json.loads(sample.get("/health")[1])["nats"] is False
    status, body = sample.get("/ready")
    assert (status, json.loads(body)) == (503, {"ready": False, "missing": ["nats", "starting"]})
    sample.wait_for_words("no NATS server answers at --nats")
    assert sample.stop(signal.SIGINT) == 0


def test_ready_follows_nats(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", nats_server.url)
    processes.append(sample)
    sample.wait_for("/ready", 200)
    nats_server.kill()
    sample.wait_for("/ready", 503)
    nats_server.restart()
    sample.wait_for("/ready", 200)
    assert sample.stop() == 0


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [("crash", 1, "boom"), ("early", 1, "without being told"), ("unable", 2, "9 GB does not fit")],
)
def test_bad_end(
    mode: str, status: int, words: str, nats_server: NatsServer, tmp_path: Path, processes: list[Sample]
) -> None:
    sample = Sample(tmp_path / "log", nats_server.url, "--mode", mode)
    processes.append(sample)
    assert sample.process.wait(LIMIT_S) == status
    assert words in sample.log()


def test_a_wait_without_end_does_not_outlive_sigterm(
    nats_server: NatsServer, tmp_path: Path, processes: list[Sample]
) -> None:
    sample = Sample(tmp_path / "log", nats_server.url, "--mode", "waiting")
    processes.append(sample)
    sample.wait_for("/ready", 200)
    assert sample.stop() == 0


def test_drain_is_bounded(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", nats_server.url, "--mode", "stuck", "--drain-timeout-s", "0.2")
    processes.append(sample)
    sample.wait_for("/ready", 200)
    assert sample.stop() == 1
    assert "drain took too long" in sample.log()


def test_a_second_signal_ends_the_drain_unless_it_comes_with_the_first(
    nats_server: NatsServer, tmp_path: Path, processes: list[Sample]
) -> None:
    sample = Sample(tmp_path / "log", nats_server.url, "--mode", "draining")
    processes.append(sample)
    sample.wait_for("/ready", 200)
    sample.process.send_signal(signal.SIGTERM)
    sample.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        sample.process.wait(2 * SAME_STOP_S)
    assert sample.get("/ready")[0] == 503
    assert sample.stop() == 0


@pytest.mark.parametrize("url", ["", "nowhere", "http://127.0.0.1:4222", "nats://127.0.0.1:notaport"])
def test_bad_nats_url_exits_2(url: str, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", url)
    processes.append(sample)
    assert sample.process.wait(LIMIT_S) == 2
    assert "--nats" in sample.log()


def test_taken_health_port_exits_1(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", nats_server.url, "--health-port", str(nats_server.port))
    processes.append(sample)
    assert sample.process.wait(LIMIT_S) == 1
    assert f"--health-port {nats_server.port}: " in sample.log()


async def test_nats_service_api(nats_server: NatsServer, tmp_path: Path, processes: list[Sample]) -> None:
    sample = Sample(tmp_path / "log", nats_server.url)
    processes.append(sample)
    await asyncio.to_thread(sample.wait_for, "/ready", 200)
    bus = await Bus.connect(nats_server.url, "test")
    ping = json.loads(await bus.request("$SRV.PING", b"", LIMIT_S))
    assert ping["type"] == "io.nats.micro.v1.ping_response"
    assert ping["name"] == "sample"
    info = json.loads(await bus.request("$SRV.INFO.sample", b"", LIMIT_S))
    assert info["type"] == "io.nats.micro.v1.info_response"
    assert info["endpoints"] == [{"name": "echo", "subject": "test.echo", "queue_group": "test", "metadata": {}}]
    stats = json.loads(await bus.request(f"$SRV.STATS.sample.{ping['id']}", b"", LIMIT_S))
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    assert stats["endpoints"][0]["num_requests"] == 4
    assert stats["endpoints"][0]["average_processing_time"] == 25
    await bus.close()
    assert sample.stop() == 0
