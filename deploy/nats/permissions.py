"""Who may say and hear what on the bus: the one place from which server configurations, tests and docs are made.

Each role is one identity, shared by all processes of that role. Whatever is not listed is denied. The reasons:

- Everybody hears only the inboxes of its own role, and answers only roles that ask it.
- Of the log a worker appends rows only, a tokenizer requests and ends, a gateway and a detokenizer ends; fences, which
  decide who leads and whose rows count, are the scheduler's alone, and so are creating, trimming and snapshotting.
- Whoever folds the log may create consumers of it and read its snapshots.
- Clients reach the tokenizers and, knowing a request's id, the detokenizers; the rest does not exist for them.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from shared import subjects

SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")
ROLES = (*SERVICES, "client", "verify", "admin")

DEFAULT_SHARDS = ("s0",)


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Allow-lists of one role. queues: (subject, queue group) heard only as a member of that group."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    queues: tuple[tuple[str, str], ...] = ()


def permissions(role: str, shards: Sequence[str] = DEFAULT_SHARDS) -> Permissions:
    """What a role may do on these shards. KeyError for an unknown role."""
    own = _ROLES[role](shards)
    inbox = f"{subjects.inboxes(role)}.>"
    asked = _service_api(role) if role in SERVICES else []
    answers = [f"{subjects.inboxes('admin')}.>"] if role in SERVICES else []
    return Permissions(publish=(*own.publish, *answers), subscribe=(*own.subscribe, inbox, *asked), queues=own.queues)


def _service_api(role: str) -> list[str]:
    """Where the NATS service API asks this role, for all of it and for one instance."""
    return [subject for verb in subjects.MICRO_VERBS for subject in subjects.micro_subjects(verb, role, "*")]


def _gateway(shards: Sequence[str]) -> Permissions:
    return Permissions(
        publish=(
            subjects.INFER,
            subjects.CANCEL,
            subjects.GATEWAY_HEARTBEAT,
            *_each(shards, subjects.attach),
            *_each(shards, _attach_any),
            *_each(shards, subjects.detach),
            *_each(shards, subjects.describe),
            *_each(shards, _describe_any),
            *_log(shards, "end"),
            *_log_info(shards),
        ),
        subscribe=(
            subjects.TOKENIZER_HEARTBEAT,
            *_each(shards, subjects.leader_heartbeat),
            *_each(shards, subjects.detokenizer_heartbeat),
            subjects.gateway("*"),  # its own incarnation's name is not known before it starts
        ),
    )


def _tokenizer(shards: Sequence[str]) -> Permissions:
    return Permissions(
        publish=(
            subjects.TOKENIZER_HEARTBEAT,
            *_log(shards, "req"),
            *_log(shards, "end"),
            *_log_info(shards),
            *_each(shards, subjects.attach),
            *_each(shards, _attach_any),
            *_each(shards, subjects.detach),
            *_answers("gateway", "client"),
        ),
        subscribe=(*_each(shards, subjects.leader_heartbeat), *_each(shards, subjects.detokenizer_heartbeat)),
        queues=tuple(
            (subject, subjects.TOKENIZER_QUEUE) for subject in (subjects.INFER, subjects.CANCEL, subjects.CLIENT_ATTACH)
        ),
    )


def _scheduler(shards: Sequence[str]) -> Permissions:
    return Permissions(
        publish=(
            subjects.plan("*"),
            subjects.gateway("*"),
            *_each(shards, subjects.leader_heartbeat),
            *_log(shards, "fence"),
            *_log(shards, "end"),
            *_fold_reading(shards),
            *_log_keeping(shards),
        ),
        subscribe=(
            subjects.GATEWAY_HEARTBEAT,
            *_each(shards, subjects.leader_heartbeat),
            *_each(shards, subjects.worker_heartbeat),
            *_each(shards, subjects.detokenizer_heartbeat),
            *_each(shards, subjects.cache_report),
            *_each(shards, subjects.plan_gap),
        ),
    )


def _worker(shards: Sequence[str]) -> Permissions:
    return Permissions(
        publish=(
            *_each(shards, subjects.worker_heartbeat),
            *_each(shards, subjects.cache_report),
            *_each(shards, subjects.plan_gap),
            *_log(shards, "out"),
            *_log_info(shards),
        ),
        subscribe=(subjects.plan("*"),),  # as with gateways
    )


def _detokenizer(shards: Sequence[str]) -> Permissions:
    by_queue = [each(shard) for shard in shards for each in (subjects.attach, subjects.describe)]
    return Permissions(
        publish=(
            *_each(shards, subjects.detokenizer_heartbeat),
            *_log(shards, "end"),
            *_fold_reading(shards),
            *_answers("gateway", "client", "tokenizer"),
        ),
        subscribe=(
            *_each(shards, _attach_any),
            *_each(shards, _describe_any),
            *_each(shards, subjects.detach),
        ),
        queues=tuple((subject, subjects.DETOKENIZER_QUEUE) for subject in by_queue),
    )


def _client(shards: Sequence[str]) -> Permissions:
    return Permissions(
        publish=(
            subjects.INFER,
            subjects.CANCEL,
            subjects.CLIENT_ATTACH,
            *_each(shards, subjects.attach),
            *_each(shards, _attach_any),
            *_each(shards, subjects.detach),
        ),
        subscribe=(subjects.TOKENIZER_HEARTBEAT, *_each(shards, subjects.detokenizer_heartbeat)),
    )


def _verify(shards: Sequence[str]) -> Permissions:
    """`tokenbus log verify`: reads the log, changes nothing."""
    return Permissions(publish=_fold_reading(shards), subscribe=())


def _admin(shards: Sequence[str]) -> Permissions:
    """An operator with the `nats` command: looks at everything that runs, and manages streams."""
    return Permissions(
        publish=(subjects.ALL_MICRO, subjects.ALL_JETSTREAM_API),
        subscribe=(subjects.ALL_HEARTBEATS,),
    )


_ROLES = {
    "gateway": _gateway,
    "tokenizer": _tokenizer,
    "scheduler": _scheduler,
    "worker": _worker,
    "detokenizer": _detokenizer,
    "client": _client,
    "verify": _verify,
    "admin": _admin,
}


# ---- what several roles need ----------------------------------------------------------------------------------------


def _each(shards: Sequence[str], subject: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(subject(shard) for shard in shards)


def _attach_any(shard: str) -> str:
    return subjects.attach_direct(shard, "*")


def _describe_any(shard: str) -> str:
    return subjects.describe_direct(shard, "*")


def _answers(*roles: str) -> tuple[str, ...]:
    return tuple(f"{subjects.inboxes(role)}.>" for role in roles)


def _log(shards: Sequence[str], kind: str) -> tuple[str, ...]:
    """Appending records of one kind."""
    return tuple(subjects.log_subject(shard, kind) for shard in shards)


def _log_info(shards: Sequence[str]) -> tuple[str, ...]:
    """Asking whether the log is there and how long it is."""
    return tuple(subjects.stream_api("INFO", subjects.log_stream(shard)) for shard in shards)


def _fold_reading(shards: Sequence[str]) -> tuple[str, ...]:
    """Tailing the log from a snapshot."""
    allowed = [*_log_info(shards), subjects.STREAM_NAMES]
    for shard in shards:
        log, snapshots = _streams(shard)
        allowed += [*subjects.consumer_api("CREATE", log), subjects.flow_control(log)]
        allowed += [subjects.stream_api(verb, snapshots) for verb in ("INFO", "MSG.GET")]
        allowed += [*subjects.direct_get(snapshots), subjects.flow_control(snapshots)]
        allowed += _flat(subjects.consumer_api(verb, snapshots) for verb in ("CREATE", "DELETE"))
    return tuple(allowed)


def _log_keeping(shards: Sequence[str]) -> tuple[str, ...]:
    """Creating log and bucket, trimming the one and filling the other."""
    allowed: list[str] = []
    for shard in shards:
        for stream in _streams(shard):
            allowed += [subjects.stream_api(verb, stream) for verb in ("CREATE", "PURGE")]
        allowed.append(subjects.object_subjects(subjects.snapshot_bucket(shard)))
    return tuple(allowed)


def _streams(shard: str) -> tuple[str, str]:
    return subjects.log_stream(shard), subjects.object_stream(subjects.snapshot_bucket(shard))


def _flat(lists: Iterable[list[str]]) -> list[str]:
    return [each for one in lists for each in one]
