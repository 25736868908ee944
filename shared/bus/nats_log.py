"""The log on JetStream: one stream per shard, an object store for snapshots of its fold."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec
import nats.errors
import nats.js.errors
from nats.js import api

from shared import subjects
from shared.bus.cancellation import cancellation_kept
from shared.bus.client import Bus
from shared.bus.errors import BusError
from shared.bus.log_tail import NatsTail
from shared.bus.snapshots import SnapshotStore
from shared.log.fold import Fold
from shared.log.port import LogFull, LogTooLarge, LogUnavailable, OnRecord, OnReload, TooFewServers

ATTEMPT_TIMEOUT_S = 0.5
RETRY_WAIT_S = 0.05
QUIET_WAIT_S = 5.0
DUPLICATE_WINDOW_S = 120
DEFAULT_MAX_BYTES = 4 * 1024**3

# Error codes of JetStream's API: the stream is at max_bytes, or the server has no storage left.
_FULL = frozenset({10023, 10047, 10077})
_NO_STORAGE = 10047
_NAME_IN_USE = 10058
_NO_CLUSTER = 10074

_logger = logging.getLogger(__name__)


class _ApiError(msgspec.Struct):
    """JetStream's error in an answer."""

    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    """JetStream's answer to a record: the log sequence that it was stored under, or why it was not."""

    seq: int = 0
    error: _ApiError | None = None


class _StreamState(msgspec.Struct):
    """Which records a stream holds."""

    first_seq: int
    last_seq: int


class _StreamInfo(msgspec.Struct):
    """JetStream's answer to a question for a stream."""

    state: _StreamState | None = None
    error: _ApiError | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode
_decode_info = msgspec.json.Decoder(_StreamInfo).decode


class NatsLog:
    """One shard's log: schedulers open it, all others find it."""

    def __init__(self, bus: Bus, shard: str) -> None:
        self.bus = bus
        self.shard = shard
        self.stream = subjects.log_stream(shard)
        self._js = bus.jetstream(ATTEMPT_TIMEOUT_S)
        self._out = subjects.log_subject(shard, "out")
        self._snapshots = SnapshotStore(self._js, subjects.snapshot_bucket(shard))

    @classmethod
    async def open(cls, bus: Bus, shard: str, max_bytes: int = DEFAULT_MAX_BYTES, replicas: int = 1) -> "NatsLog":
        """The shard's log, created if it is not there; waits for the server as long as it takes.

        replicas: servers that store each record and each snapshot. A log that is there keeps its own limits. Raises
        LogTooLarge when the server has no room for max_bytes, TooFewServers when it is no cluster.
        """
        log = cls(bus, shard)
        await log._until_done(lambda: log._create(max_bytes, replicas))
        return log

    @classmethod
    async def find(cls, bus: Bus, shard: str) -> "NatsLog":
        """The shard's log once a scheduler has created it, with the scheduler's limits; waits as long as it takes."""
        log = cls(bus, shard)
        await log._until_done(log._check)
        return log

    async def _until_done(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat the attempt while it fails; a long wait is told once."""
        loop = asyncio.get_running_loop()
        quiet_until: float | None = loop.time() + QUIET_WAIT_S
        while True:
            try:
                with cancellation_kept():
                    return await attempt()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                if quiet_until is not None and loop.time() > quiet_until:
                    _logger.warning("log %s is not there yet: %s", self.stream, str(error) or type(error).__name__)
                    quiet_until = None
                await asyncio.sleep(RETRY_WAIT_S)

    async def _check(self) -> None:
        await self._js.stream_info(self.stream)

    async def _create(self, max_bytes: int, replicas: int) -> None:
        config = api.StreamConfig(
            name=self.stream,
            subjects=[subjects.log_subjects(self.shard)],
            storage=api.StorageType.FILE,
            discard=api.DiscardPolicy.NEW,
            max_bytes=max_bytes,
            duplicate_window=DUPLICATE_WINDOW_S,
            num_replicas=replicas,
        )
        try:
            await self._js.add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code == _NO_STORAGE:
                raise LogTooLarge(
                    f"nats-server has no storage left for a log of {max_bytes} bytes; free disk space or allow less"
                ) from None
            if error.err_code == _NO_CLUSTER:
                raise TooFewServers(f"{replicas} replicas need a NATS cluster, and this server is none") from None
            if error.err_code != _NAME_IN_USE:
                raise
            await self._tell_difference(replicas)
        await self._snapshots.create(replicas)

    async def _tell_difference(self, replicas: int) -> None:
        """A log that is there keeps its limits; that it has other replicas than asked for is worth a warning."""
        there = (await self._js.stream_info(self.stream)).config.num_replicas
        if there != replicas:
            _logger.warning("log %s keeps its %s replicas, not %d", self.stream, there, replicas)

    async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
        """See Log.append."""
        until = asyncio.get_running_loop().time() + horizon_s
        subject = subjects.log_subject(self.shard, kind)
        headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id.encode()
        while True:
            try:
                ack = _decode_ack(await self.bus.request(subject, data, ATTEMPT_TIMEOUT_S, headers))
                if ack.error is None:
                    return ack.seq
                if ack.error.err_code in _FULL:
                    raise LogFull(ack.error.description)
                why = ack.error.description
            except (BusError, TimeoutError, msgspec.MsgspecError) as error:
                why = str(error) or type(error).__name__
            if asyncio.get_running_loop().time() >= until:
                raise LogUnavailable(f"{kind} record not acknowledged within {horizon_s} s: {why}")
            await asyncio.sleep(RETRY_WAIT_S)

    def append_frame(self, data: bytes, reply: str) -> bool:
        """See Log.append_frame."""
        return self.bus.publish(self._out, data, reply)

    async def append_fence(self, data: bytes, expected: int) -> int | None:
        """See Log.append_fence. Without Nats-Msg-Id: a retry of a stored fence is refused all the same.

        To the server a trimmed fence never was: then the first one to expect none wins.
        """
        try:
            with cancellation_kept():
                if expected and (await self._js.stream_info(self.stream)).state.first_seq > expected:
                    expected = 0
                headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
                subject = subjects.log_subject(self.shard, "fence")
                return (await self._js.publish(subject, data, timeout=ATTEMPT_TIMEOUT_S, headers=headers)).seq
        except (nats.errors.Error, OSError, TimeoutError) as error:
            _logger.info("fence refused or unknown: %s", error)
            return None

    def tail(self, fold: Fold, on_record: OnRecord, on_reload: OnReload) -> NatsTail:
        """See Log.tail."""
        return NatsTail(self.bus, self._js, self.stream, self._snapshots, fold, on_record, on_reload)

    async def save_snapshot(self, data: bytes, seq: int) -> None:
        """See Log.save_snapshot."""
        with _as_unavailable("snapshot not saved"):
            await self._snapshots.save(data, seq)

    async def load_snapshot(self, oldest: bool = False) -> bytes | None:
        """See Log.load_snapshot."""
        first_seq, _ = await self.bounds()
        with _as_unavailable("snapshot not loaded"):
            return await self._snapshots.load(min_seq=first_seq - 1, oldest=oldest)

    async def is_trimmed(self) -> bool:
        """See Log.is_trimmed."""
        return (await self.bounds())[0] > 1

    async def trim(self, seq: int) -> None:
        """See Log.trim."""
        with _as_unavailable("log not trimmed"):
            await self._js.purge_stream(self.stream, seq=seq + 1)

    async def bounds(self) -> tuple[int, int]:
        """(first_seq, last_seq) of the stream; first is last + 1 when it is empty. Raises LogUnavailable."""
        try:
            info = _decode_info(
                await self.bus.request(subjects.stream_api("INFO", self.stream), b"", ATTEMPT_TIMEOUT_S)
            )
        except (BusError, TimeoutError, msgspec.MsgspecError) as error:
            raise LogUnavailable(f"log not there: {str(error) or type(error).__name__}") from error
        if info.state is None:
            raise LogUnavailable(f"log not there: {info.error.description if info.error else 'no answer'}")
        return info.state.first_seq, info.state.last_seq

    async def fill_share(self) -> float:
        """Share of max_bytes in use, 0 without a limit. Raises LogUnavailable."""
        with _as_unavailable("log not there"):
            info = await self._js.stream_info(self.stream)
        limit = info.config.max_bytes or -1
        return info.state.bytes / limit if limit > 0 else 0.0


@contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    """nats-py's errors in the terms of the port."""
    try:
        with cancellation_kept():
            yield
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise LogUnavailable(f"{what}: {error}") from error
