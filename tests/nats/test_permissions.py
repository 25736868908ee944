"""Every role on every subject: publish, subscribe, subscribe in a queue group; on a real server with TLS."""

import re
from collections.abc import Iterable

import pytest
from nats.aio.msg import Msg

from deploy.nats.permissions import ROLES, Permissions, permissions
from shared import subjects
from tests.nats.secured import SecuredServer, settle
from tests.waiting import until

WORKER = "worker-7-0011aabb"
DETOKENIZER = "detokenizer-7-0011aabb"
LOG = subjects.log_stream("s0")
SNAPSHOTS = subjects.object_stream(subjects.snapshot_bucket("s0"))
QUEUES = (subjects.TOKENIZER_QUEUE, subjects.DETOKENIZER_QUEUE, "eavesdroppers")

DATA = [
    subjects.INFER,
    subjects.CANCEL,
    subjects.CLIENT_ATTACH,
    subjects.TOKENIZER_HEARTBEAT,
    subjects.GATEWAY_HEARTBEAT,
    subjects.gateway("gateway-7-0011aabb"),
    subjects.plan(WORKER),
    *(subjects.log_subject("s0", kind) for kind in subjects.LOG_KINDS),
    *(
        of_shard(shard)
        for of_shard in (
            subjects.worker_heartbeat,
            subjects.leader_heartbeat,
            subjects.detokenizer_heartbeat,
            subjects.cache_report,
            subjects.plan_gap,
            subjects.attach,
            subjects.detach,
            subjects.describe,
        )
        for shard in ("s0", "s1")
    ),
    subjects.log_subject("s1", "out"),
    subjects.log_subject("s1", "fence"),
    subjects.attach_direct("s0", DETOKENIZER),
    subjects.describe_direct("s0", DETOKENIZER),
    *(f"{subjects.inboxes(role)}.1234.5" for role in ROLES),
    "_INBOX.1234.5",
    *(subject for role in ROLES for subject in subjects.micro_subjects("PING", role, f"{role}-1")),
    "$O.SNAP_s0.C.1234",
    "$O.SNAP_s0.M.c2xvdC0w",
    "elsewhere",
]
SERVER_API = [
    *(
        subjects.stream_api(verb, stream)
        for stream in (LOG, SNAPSHOTS, "LOG_s1")
        for verb in (
            "CREATE",
            "UPDATE",
            "INFO",
            "PURGE",
            "DELETE",
            "MSG.GET",
            "MSG.DELETE",
            "SNAPSHOT",
            "RESTORE",
            "LEADER.STEPDOWN",
        )
    ),
    *(
        subject.replace(">", "name")
        for stream in (LOG, SNAPSHOTS, "LOG_s1")
        for verb in ("CREATE", "DELETE", "LIST")
        for subject in subjects.consumer_api(verb, stream)
    ),
    *(subject.replace(">", "$O.SNAP_s0.M.c2xvdC0w") for subject in subjects.direct_get(SNAPSHOTS)),
    subjects.direct_get(LOG)[0],
    subjects.flow_control(LOG).replace(">", "c.1"),
    subjects.flow_control("LOG_s1").replace(">", "c.1"),
    subjects.STREAM_NAMES,
    "$JS.API.INFO",
    "$JS.API.ACCOUNT.PURGE.TOKENBUS",
    f"$JS.ACK.{LOG}.c.1.1.1.1.0",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.TOKENBUS.CONNZ",
]
WILDCARDS = [
    ">",
    "*",
    f"{subjects.PREFIX}.>",
    subjects.ALL_HEARTBEATS,
    subjects.log_subjects("s0"),
    subjects.plan("*"),
    subjects.attach_direct("s0", "*"),
    "_INBOX.>",
    *(f"{subjects.inboxes(role)}.>" for role in ROLES),
    "$JS.API.>",
    "$JS.EVENT.>",
    "$SRV.>",
    "$SYS.>",
]

# What must be so whatever the lists say: (subject, the only roles that may publish it).
SOLE_PUBLISHERS = [
    (subjects.log_subject("s0", "req"), {"tokenizer"}),
    (subjects.log_subject("s0", "out"), {"worker"}),
    (subjects.log_subject("s0", "fence"), {"scheduler"}),
    (subjects.log_subject("s0", "end"), {"gateway", "tokenizer", "scheduler", "detokenizer"}),
    (subjects.plan(WORKER), {"scheduler"}),
    (subjects.leader_heartbeat("s0"), {"scheduler"}),
    (subjects.worker_heartbeat("s0"), {"worker"}),
    (subjects.detokenizer_heartbeat("s0"), {"detokenizer"}),
    (subjects.TOKENIZER_HEARTBEAT, {"tokenizer"}),
    (subjects.GATEWAY_HEARTBEAT, {"gateway"}),
    (subjects.gateway("gateway-7-0011aabb"), {"scheduler"}),
    (subjects.INFER, {"client", "gateway"}),
    (subjects.stream_api("PURGE", LOG), {"scheduler", "admin"}),
    (subjects.stream_api("DELETE", LOG), {"admin"}),
    (subjects.consumer_api("CREATE", LOG)[0], {"scheduler", "detokenizer", "verify", "admin"}),
]


def covers(pattern: str, subject: str) -> bool:
    """Whether a NATS pattern covers a subject or a narrower pattern."""
    mine, theirs = pattern.split("."), subject.split(".")
    for number, part in enumerate(mine):
        if part == ">":
            return len(theirs) > number
        if number >= len(theirs) or theirs[number] == ">" or (part != "*" and part != theirs[number]):
            return False
    return len(mine) == len(theirs)


def may_publish(allowed: Permissions, subject: str) -> bool:
    return any(covers(pattern, subject) for pattern in allowed.publish)


def may_hear(allowed: Permissions, subject: str, queue: str = "") -> bool:
    return any(covers(pattern, subject) for pattern in allowed.subscribe) or (subject, queue) in allowed.queues


def denied(violations: Iterable[str], kind: str) -> set[tuple[str, str]]:
    """(subject, queue) of the violations that a server has told, in lower case as nats-py gives them."""
    found = set()
    for text in violations:
        match = re.search(
            rf'Permissions Violation for {kind} (?:to|using queue) "([^"]*)"(?: using queue "([^"]*)")?', text, re.I
        )
        if match:
            found.add((match[1], match[2] or ""))
    return found


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_publishes_only_what_its_list_says(secured: SecuredServer, role: str) -> None:
    allowed = permissions(role)
    violations: list[str] = []
    arrived: list[str] = []

    async def on_message(message: Msg) -> None:
        arrived.append(message.subject)

    observer = await secured.observer()
    await observer.subscribe(">", cb=on_message)
    await settle(observer)
    connection = await secured.role(role, violations)
    for subject in [*DATA, *SERVER_API]:
        await connection.publish(subject, b"")
    await settle(connection)
    await settle(observer)
    expected = {(subject.lower(), "") for subject in [*DATA, *SERVER_API] if not may_publish(allowed, subject)}
    assert denied(violations, "Publish") == expected
    assert set(arrived) & set(DATA) == {subject for subject in DATA if may_publish(allowed, subject)}
    assert connection.is_connected
    await connection.close()
    await observer.close()


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_hears_only_what_its_list_says(secured: SecuredServer, role: str) -> None:
    allowed = permissions(role)
    violations: list[str] = []
    heard: set[tuple[str, str]] = set()
    connection = await secured.role(role, violations)
    singles = [(subject, queue) for subject in DATA for queue in ("", *QUEUES)]
    for subject, queue in singles:

        async def on_message(message: Msg, key: tuple[str, str] = (subject, queue)) -> None:
            heard.add(key)

        await connection.subscribe(subject, queue=queue, cb=on_message)
    await settle(connection)
    observer = await secured.observer()
    for subject in DATA:
        await observer.publish(subject, b"")
    await settle(observer)
    await settle(connection)
    expected = {(subject, queue) for subject, queue in singles if may_hear(allowed, subject, queue)}
    await until(lambda: heard == expected, "every allowed subscription hears")
    patterns = [(subject, queue) for subject in [*SERVER_API, *WILDCARDS] for queue in ("", *QUEUES)]
    for subject, queue in patterns:
        await connection.subscribe(subject, queue=queue, cb=ignore)
    await settle(connection)
    refused = {
        (subject.lower(), queue) for subject, queue in singles + patterns if not may_hear(allowed, subject, queue)
    }
    assert denied(violations, "Subscription") == refused
    await connection.close()
    await observer.close()


async def ignore(message: Msg) -> None:
    """A handler for subscriptions that are only tried."""


@pytest.mark.parametrize(("subject", "publishers"), SOLE_PUBLISHERS)
def test_what_decides_is_said_by_few(subject: str, publishers: set[str]) -> None:
    assert {role for role in ROLES if may_publish(permissions(role), subject)} == publishers


@pytest.mark.parametrize("role", ROLES)
def test_nobody_may_say_or_hear_everything(role: str) -> None:
    allowed = permissions(role)
    assert not any(pattern in (">", "*", "_INBOX.>", f"{subjects.PREFIX}.>") for pattern in allowed.publish)
    assert not any(may_hear(allowed, pattern) for pattern in (">", "_INBOX.>", f"{subjects.PREFIX}.>", "$JS.API.>"))
    others = [other for other in ROLES if other != role]
    assert not any(may_hear(allowed, f"{subjects.inboxes(other)}.1") for other in others)


def test_other_shards_are_other_peoples() -> None:
    for role in set(ROLES) - {"admin"}:
        allowed = permissions(role, ["s1"])
        assert not any(".s0" in pattern or "_s0" in pattern for pattern in (*allowed.publish, *allowed.subscribe)), role
        both = permissions(role, ["s0", "s1"])
        assert set(allowed.publish) <= set(both.publish) and set(permissions(role).publish) <= set(both.publish)
