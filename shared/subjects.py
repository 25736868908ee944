"""Every NATS subject and stream name, in one place.

Model names never stand in subjects (they hold dots); they travel inside the messages.
"""

PREFIX = "tb.v1"
INFER = f"{PREFIX}.infer"
CANCEL = f"{PREFIX}.cancel"
CLIENT_ATTACH = f"{PREFIX}.attach"
TOKENIZER_HEARTBEAT = f"{PREFIX}.heartbeat.tokenizer"
GATEWAY_HEARTBEAT = f"{PREFIX}.heartbeat.gateway"

TOKENIZER_QUEUE = "tokenizer"
DETOKENIZER_QUEUE = "detokenizer"

STREAM_NAMES = "$JS.API.STREAM.NAMES"
ALL_JETSTREAM_API = "$JS.API.>"
ALL_MICRO = "$SRV.>"
ALL_HEARTBEATS = f"{PREFIX}.heartbeat.>"
MICRO_VERBS = ("PING", "INFO", "STATS")

LOG_KINDS = ("req", "out", "fence", "end")


def gateway(name: str) -> str:
    """Heard by this gateway alone, which answers nothing: that nobody listens there says that it is not on the bus."""
    return f"{PREFIX}.gateway.{name}"


def log_subject(shard: str, kind: str) -> str:
    """Subject of one kind of record (req, out, fence, end) in the shard's log."""
    return f"{PREFIX}.log.{shard}.{kind}"


def log_subjects(shard: str) -> str:
    """All of the shard's log."""
    return f"{PREFIX}.log.{shard}.>"


def log_stream(shard: str) -> str:
    """Name of the JetStream stream that stores the shard's log."""
    return f"LOG_{shard}"


def snapshot_bucket(shard: str) -> str:
    """Name of the object store that holds the fold's snapshots."""
    return f"SNAP_{shard}"


def plan(worker: str) -> str:
    """StepPlan and EpochStart for one worker incarnation."""
    return f"{PREFIX}.plan.{worker}"


def worker_heartbeat(shard: str) -> str:
    """WorkerHeartbeat of all workers."""
    return f"{PREFIX}.heartbeat.{shard}.worker"


def leader_heartbeat(shard: str) -> str:
    """LeaderHeartbeat of the leading scheduler; shard may be `*`."""
    return f"{PREFIX}.heartbeat.{shard}.leader"


def detokenizer_heartbeat(shard: str) -> str:
    """DetokenizerHeartbeat of all detokenizers."""
    return f"{PREFIX}.heartbeat.{shard}.detokenizer"


def cache_report(shard: str) -> str:
    """CacheReport of workers at a new epoch."""
    return f"{PREFIX}.cache_report.{shard}"


def plan_gap(shard: str) -> str:
    """PlanGap of workers."""
    return f"{PREFIX}.plan_gap.{shard}"


def attach(shard: str) -> str:
    """Attach, answered by any detokenizer of the shard (queue group)."""
    return f"{PREFIX}.attach.{shard}"


def attach_direct(shard: str, detokenizer: str) -> str:
    """Attach, answered by this detokenizer."""
    return f"{PREFIX}.attach.{shard}.{detokenizer}"


def detach(shard: str) -> str:
    """Detach, heard by all detokenizers."""
    return f"{PREFIX}.detach.{shard}"


def describe(shard: str) -> str:
    """Describe, answered by any detokenizer of the shard (queue group)."""
    return f"{PREFIX}.describe.{shard}"


def describe_direct(shard: str, detokenizer: str) -> str:
    """Describe, answered by this detokenizer."""
    return f"{PREFIX}.describe.{shard}.{detokenizer}"


def inboxes(role: str) -> str:
    """Prefix of the inboxes of all processes of a role, so that permissions can be given per role."""
    return f"_INBOX.{role}"


def is_inbox(subject: str) -> bool:
    """Whether replies may be sent there: only inboxes, never subjects of ours or of the server."""
    return is_plain(subject) and subject.startswith("_INBOX.") and all(part not in "*>" for part in subject.split("."))


def is_plain(subject: str) -> bool:
    """Whether the server takes it for one subject. Subjects hold names that others chose, and a name with a line break
    in it would be a command to the server, in the name of whoever publishes there."""
    return subject.isascii() and subject.isprintable() and " " not in subject and ".." not in f".{subject}."


def micro_subjects(verb: str, name: str, id: str) -> list[str]:
    """Where the NATS service API asks (verb PING, INFO or STATS) all services, those of a name, and one instance."""
    return [f"$SRV.{verb}", f"$SRV.{verb}.{name}", f"$SRV.{verb}.{name}.{id}"]


def object_stream(bucket: str) -> str:
    """Name of the JetStream stream behind an object store."""
    return f"OBJ_{bucket}"


def object_subjects(bucket: str) -> str:
    """Chunks and descriptions of the objects in a bucket."""
    return f"$O.{bucket}.>"


def object_chunks(bucket: str, nuid: str) -> str:
    """Chunks of one object; `>` for those of all."""
    return f"$O.{bucket}.C.{nuid}"


def stream_api(verb: str, stream: str) -> str:
    """JetStream's API on one stream: CREATE, UPDATE, INFO, PURGE, DELETE, MSG.GET."""
    return f"$JS.API.STREAM.{verb}.{stream}"


def consumer_api(verb: str, stream: str) -> list[str]:
    """JetStream's API on consumers of one stream (CREATE, DELETE), named or not."""
    return [f"$JS.API.CONSUMER.{verb}.{stream}", f"$JS.API.CONSUMER.{verb}.{stream}.>"]


def direct_get(stream: str) -> list[str]:
    """Reading single messages of a stream from any of its replicas."""
    return [f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.>"]


def flow_control(stream: str) -> str:
    """Where a consumer of the stream hears that its pace suits."""
    return f"$JS.FC.{stream}.>"
