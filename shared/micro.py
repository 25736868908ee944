"""The NATS service API (ADR-32 of the NATS architecture): every instance answers $SRV.PING, INFO and STATS.

`nats micro ls`, `nats micro info tokenizer` and `nats micro stats tokenizer` then show the running services. Each of
the three is asked of all services, of all instances of one name, and of one instance.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import msgspec

from shared.subjects import MICRO_VERBS, micro_subjects


class EndpointCounts(msgspec.Struct):
    """Counters of one endpoint since the start; processing_time in nanoseconds."""

    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    data: dict[str, object] | None = None


class Endpoint(msgspec.Struct):
    """A subject that this service answers, with a function that reads its counters."""

    name: str
    subject: str
    queue_group: str
    read: Callable[[], EndpointCounts]


class MicroService:
    """Answers for one instance: name is the service's, id the incarnation's."""

    def __init__(self, name: str, id: str, description: str, metadata: dict[str, str]) -> None:
        self.name = name
        self.id = id
        self._description = description
        self._identity = {"name": name, "id": id, "version": package_version(), "metadata": metadata}
        self._started = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._endpoints: list[Endpoint] = []

    def add(self, endpoint: Endpoint) -> None:
        """Show this endpoint in INFO and STATS."""
        self._endpoints.append(endpoint)

    def subjects(self) -> list[str]:
        """All subjects to subscribe to."""
        return [subject for verb in MICRO_VERBS for subject in micro_subjects(verb, self.name, self.id)]

    def answer(self, subject: str) -> bytes:
        """The JSON answer to a request on one of subjects()."""
        verb = subject.split(".")[1]
        answers = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        return msgspec.json.encode(answers[verb]())

    def _ping(self) -> dict[str, object]:
        return {**self._identity, "type": "io.nats.micro.v1.ping_response"}

    def _info(self) -> dict[str, object]:
        endpoints = [
            {"name": each.name, "subject": each.subject, "queue_group": each.queue_group, "metadata": {}}
            for each in self._endpoints
        ]
        return {
            **self._identity,
            "type": "io.nats.micro.v1.info_response",
            "description": self._description,
            "endpoints": endpoints,
        }

    def _stats(self) -> dict[str, object]:
        return {
            **self._identity,
            "type": "io.nats.micro.v1.stats_response",
            "started": self._started,
            "endpoints": [_endpoint_stats(each) for each in self._endpoints],
        }


def package_version() -> str:
    """The installed version of this distribution."""
    return _VERSION


def _read_version() -> str:
    try:
        return version("tokenbus")
    except PackageNotFoundError:
        return "0.0.0"


_VERSION = _read_version()  # once, at import: it reads files, which an event loop must not


def _endpoint_stats(endpoint: Endpoint) -> dict[str, object]:
    counts = endpoint.read()
    stats: dict[str, object] = {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": endpoint.queue_group,
        "num_requests": counts.num_requests,
        "num_errors": counts.num_errors,
        "last_error": counts.last_error,
        "processing_time": counts.processing_time,
        "average_processing_time": counts.processing_time // max(1, counts.num_requests),
    }
    if counts.data is not None:
        stats["data"] = counts.data
    return stats
