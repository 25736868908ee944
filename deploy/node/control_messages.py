"""What `tokenbus status` and `tokenbus restart` say to a node, and what it answers: one JSON object per line."""

import msgspec


class StatusRequest(msgspec.Struct, tag_field="kind", tag="status", frozen=True):
    """Answered by a ProcessStatus for each process, then Finished."""


class RestartRequest(msgspec.Struct, tag_field="kind", tag="restart", frozen=True):
    """Answered by Progress lines, then Finished or Failed. services: empty for all of ours (not nats-server)."""

    rolling: bool = False
    services: list[str] = []


class ProcessStatus(msgspec.Struct, tag_field="kind", tag="process", frozen=True):
    """One process. pid: None between an end and the next start. num_restarts: how often it died and was, or is, started
    again; what was restarted on purpose does not count."""

    name: str
    pid: int | None
    ready: bool
    leading: bool
    num_restarts: int


class Progress(msgspec.Struct, tag_field="kind", tag="progress", frozen=True):
    """A stage of a restart. stage: starting, draining or ready."""

    process: str
    stage: str
    pid: int | None = None


class Finished(msgspec.Struct, tag_field="kind", tag="finished", frozen=True):
    """All is done."""


class Failed(msgspec.Struct, tag_field="kind", tag="failed", frozen=True):
    """It cannot be done, or did not end well."""

    message: str


Command = StatusRequest | RestartRequest
Answer = ProcessStatus | Progress | Finished | Failed
