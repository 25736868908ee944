"""`tokenbus up --secure`: the whole node behind TLS, sign-in and permissions, and bad input from every role.

Rows N1 to N8 of bad inputs again, with the credentials of each role: garbage where the role may publish harms nobody,
and nothing comes through where it may not.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from bench.shard_messages import ready_worker
from deploy.nats.permissions import ROLES, permissions
from shared import subjects
from shared.bus.client import Bus
from shared.bus.credentials import Credentials
from shared.bus.errors import PayloadTooLarge
from shared.bus.nats_log import NatsLog
from shared.client import AcceptedEvent, TextEvent, TokenbusClient
from shared.messages.codec import encode
from shared.messages.control import Attach, WorkerHeartbeat
from tests.e2e.clients import Clients
from tests.e2e.streams import many
from tests.e2e.test_hostile_nats import GARBAGE, INTERNAL, misplaced_records
from tests.nats.test_permissions import may_publish
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MODEL = "smollm2-135m"
CHAINED = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10")
SUBJECTS = [
    *INTERNAL,
    subjects.GATEWAY_HEARTBEAT,
    subjects.gateway("gateway-1-00000000"),
    subjects.describe("s0"),
    subjects.attach_direct("s0", "detokenizer-1-00000000"),
    subjects.describe_direct("s0", "detokenizer-1-00000000"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    options = ("--secure", *CHAINED, "--snapshot-interval-s", "0.5", "--log-retention-s", "0")
    with RunningNode(tmp_path_factory.mktemp("secure") / "node", *options) as running:
        yield running


@pytest.fixture(scope="module")
def credentials(node: RunningNode) -> dict[str, Credentials]:
    return {role: node.credentials(role) for role in ROLES}


def worker_name(node: RunningNode) -> str:
    return re.findall(r"name=(worker-\d+-[0-9a-f]{8})", node.log("worker-0"))[-1]


async def check_serving(node: RunningNode, label: str, foreign: int = 0) -> None:
    """New requests are answered in full and as the log has them, and the log is clean but for foreign records."""
    bodies = [{"model": MODEL, "prompt": f"{label} {n}", "max_tokens": 40, "ignore_eos": True} for n in range(8)]
    answers = await many(node.url, "/v1/completions", bodies)
    assert [answer.error for answer in answers if not answer.whole] == []
    report = await asyncio.to_thread(node.verify)
    assert {name: number for name, number in wrongs(report).items() if name != "foreign"} == {}
    assert report["foreign"] >= foreign
    for answer in answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids


async def test_a_client_finds_what_it_needs_in_the_data_folder(node: RunningNode) -> None:
    assert node.nats.startswith("tls://")
    names = {path.name for path in (node.folder.root / "credentials").iterdir()}
    assert {"client.seed", "client.pem", "client.key", "ca.pem"} <= names
    ask = [sys.executable, "-m", "deploy.cli.main", "ask", "--max-tokens", "8", "hello"]
    done = await asyncio.to_thread(
        subprocess.run, [*ask, "--data-dir", str(node.folder.root)], capture_output=True, text=True
    )
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr


async def test_the_native_client_reads_over_tls(node: RunningNode, credentials: dict[str, Credentials]) -> None:
    async with await TokenbusClient.connect(node.nats, "my-app", credentials["client"]) as client:
        assert [card.name for card in await client.models()] == [MODEL]
        answer = await client.generate(prompt="hello", max_tokens=12, ignore_eos=True)
    assert len(answer.choices[0].token_ids) == 12


async def test_the_log_is_snapshotted_trimmed_and_read_from_snapshots(
    node: RunningNode, credentials: dict[str, Credentials]
) -> None:
    """All that JetStream is asked for is allowed: no service hears of a violation of its permissions."""
    bus = await Bus.connect(node.nats, "verify-1", credentials["verify"])
    log = NatsLog(bus, "s0")
    await check_serving(node, "before")
    end = asyncio.get_running_loop().time() + LIMIT_S
    while not await log.is_trimmed():
        assert asyncio.get_running_loop().time() < end, "the log is trimmed"
        await asyncio.sleep(0.1)
    await bus.close()
    for name in ("detokenizer-0", "scheduler-0"):
        before = node.signal(name, signal.SIGKILL)
        await until(lambda name=name, before=before: node.pids().get(name, before) != before, "a new process")
    await check_serving(node, "from a snapshot")
    await until(lambda: "loaded a snapshot" in node.log("detokenizer-0"), "a snapshot loaded")
    services = [path.stem for path in (node.folder.root / "logs").glob("*-0.log")]
    assert len(services) == 5
    assert [name for name in services if "violation" in node.log(name)] == []


async def test_a_killed_server_is_found_again_by_everybody(node: RunningNode) -> None:
    before = node.pids()
    body = {"model": MODEL, "prompt": "kill", "max_tokens": 150, "min_tokens": 150, "ignore_eos": True}
    async with Clients(node.url, 8, body, refusals_count=False) as clients:
        await clients.all_running()
        pid = node.signal("nats-server")
        await until(lambda: node.pids().get("nats-server", pid) != pid, "restart")
    assert clients.failures == []
    await check_serving(node, "after the kill")
    assert {name: pid for name, pid in node.pids().items() if name != "nats-server"} == {
        name: pid for name, pid in before.items() if name != "nats-server"
    }


@pytest.mark.parametrize("role", ROLES)
async def test_garbage_from_a_role_harms_nobody(
    node: RunningNode, credentials: dict[str, Credentials], role: str
) -> None:
    before = node.pids()
    bus = await Bus.connect(node.nats, f"{role}-stranger", credentials[role], role=role)
    allowed = permissions(role)
    targets = [*SUBJECTS, subjects.plan(worker_name(node))]
    mine = [subject for subject in targets if may_publish(allowed, subject)]
    for subject in targets:
        for data in GARBAGE.values():
            assert bus.publish(subject, data, reply=bus.new_inbox())
    num_denied = (len(targets) - len(mine)) * len(GARBAGE)
    misplaced = [(subjects.log_subject("s0", kind), data) for kind, data in misplaced_records(1)]
    for subject, data in misplaced:
        bus.publish(subject, data)
    num_denied += sum(subject not in mine for subject, _ in misplaced)
    for subject in (subjects.INFER, subjects.CANCEL, subjects.CLIENT_ATTACH):
        bus.publish(subject, b'{"v":1,"request_id":"' + b"e" * 32 + b'"}', reply=subjects.log_subject("s0", "fence"))
        num_denied += subject not in mine
    await bus.flush(LIMIT_S)
    await until(lambda: bus.num_refused == num_denied, f"{num_denied} refusals")
    with pytest.raises(PayloadTooLarge):
        bus.publish(targets[0], b"x" * (bus.max_payload + 1))
    await check_serving(node, f"after {role}")
    assert node.pids() == before
    await bus.close()


async def test_n7_a_message_that_is_too_large_ends_its_senders_connection_alone(
    node: RunningNode, credentials: dict[str, Credentials]
) -> None:
    """A client that does not check the size itself loses its connection; the services lose nothing."""
    before = node.pids()
    other = await Bus.connect(node.nats, "client-other", credentials["client"])
    rude = await Bus.connect(node.nats, "client-rude", credentials["client"])
    size = rude.max_payload + 1
    rude._client.write_now(b"PUB %b %d\r\n%b\r\n" % (subjects.INFER.encode(), size, bytes(size)))
    await until(lambda: rude._client.stats["reconnects"] == 1, "its connection ended")
    await until(lambda: rude.is_connected, "it comes back")
    assert other._client.stats["reconnects"] == 0
    await check_serving(node, "after a large message")
    assert node.pids() == before
    await rude.close()
    await other.close()


async def test_no_secret_is_written_anywhere(node: RunningNode) -> None:
    """Neither seeds nor private keys stand in logs and configurations, only the names of their files."""
    root = node.folder.root
    secrets = [path.read_text().strip() for path in (root / "credentials").glob("*.seed")]
    secrets += [path.read_text().splitlines()[1] for path in (root / "credentials").glob("*.key")]
    assert len(secrets) == 2 * len(ROLES) + 2
    files = [*(root / "logs").iterdir(), *(root / "config").iterdir(), node.output]
    texts = {path.name: path.read_text(errors="replace") for path in files}
    assert [name for name, text in texts.items() if any(secret in text for secret in secrets)] == []
    assert "client.seed" not in texts["gateway-0.toml"] and "gateway.seed" in texts["gateway-0.toml"]


def command(kind: str) -> str:
    """A name that, spoken as a subject, appends a malformed record to the log."""
    return f" 0\r\n\r\nPUB {subjects.log_subject('s0', kind)} 3\r\nbad\r\nPUB x"


async def test_n6_names_that_are_commands_are_not_spoken_by_those_who_hear_them(
    node: RunningNode, credentials: dict[str, Credentials]
) -> None:
    """A client's inbox and a worker's name become subjects of a detokenizer and of the scheduler, who may do more."""
    before = node.pids()
    num_malformed = (await asyncio.to_thread(node.verify))["malformed"]
    bus = await Bus.connect(node.nats, "client-1", credentials["client"])
    worker = await Bus.connect(node.nats, "worker-1", credentials["worker"])
    inbox = f"_INBOX.client.x{command('end')}"
    for name in (f"worker-1-00000000{command('fence')}", "worker 1", ""):
        assert worker.publish(subjects.worker_heartbeat("s0"), encode(heartbeat(name)))
    num_texts = 0
    async with await TokenbusClient.connect(node.nats, "client", credentials["client"]) as client:
        async for event in client.stream(prompt="long", max_tokens=150, ignore_eos=True):
            if isinstance(event, AcceptedEvent):
                attach = Attach(request_id=event.request_id, inbox=inbox, number=1)
                assert bus.publish(subjects.attach("s0"), encode(attach), reply=bus.new_inbox())
            num_texts += isinstance(event, TextEvent)
    assert num_texts
    await check_serving(node, "after the commands")
    assert (await asyncio.to_thread(node.verify))["malformed"] == num_malformed
    assert node.pids() == before
    await bus.close()
    await worker.close()


def heartbeat(worker: str) -> WorkerHeartbeat:
    """Of a worker that could serve."""
    return structs.replace(
        ready_worker(
            worker,
            num_blocks=100,
            block_size=16,
            max_num_seqs=8,
            max_num_batched_tokens=512,
            max_model_len=1024,
        ),
        model=MODEL,
    )


async def test_an_acknowledgement_as_a_fence_ends_no_take_over(
    node: RunningNode, credentials: dict[str, Credentials]
) -> None:
    """JetStream acknowledges to any subject, so a worker can have it write one into the log where it may not write
    itself. It decides nothing there, and schedulers still take over."""
    bus = await Bus.connect(node.nats, "worker-stranger", credentials["worker"])
    (before,) = node.pids("scheduler").values()
    num_malformed = (await asyncio.to_thread(node.verify))["malformed"]
    bus.publish(subjects.log_subject("s0", "out"), b"", reply=subjects.log_subject("s0", "fence"))
    await bus.flush()
    await check_serving(node, "after the acknowledgement")
    assert (await asyncio.to_thread(node.verify))["malformed"] == num_malformed + 2, "the frame and the fence"
    os.kill(before, signal.SIGKILL)
    await until(lambda: node.pids("scheduler").get("scheduler-0", before) != before, "a new scheduler")
    await check_serving(node, "after the take-over")
    await bus.close()


@pytest.mark.parametrize(
    ("options", "word"), [(["--secure", "--nats"], "--nats-credentials"), (["--nats-credentials"], "--secure")]
)
def test_options_that_contradict_each_other_are_refused(
    node: RunningNode, tmp_path: Path, options: list[str], word: str
) -> None:
    command = [sys.executable, "-m", "deploy.cli.main", "up", "--engine", "fake", "--port", "0", "--data-dir"]
    done = subprocess.run([*command, str(tmp_path), *options, node.nats], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and word in done.stderr and done.stderr.count("\n") == 1
