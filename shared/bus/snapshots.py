"""Snapshots of a fold in JetStream's object store, a few slots written in turn."""

import asyncio
import logging
from collections.abc import Collection

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext, api
from nats.js.object_store import ObjectStore

from shared import subjects

SLOTS = 3
CHUNK_BYTES = 1024 * 1024
SAVE_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 5.0
ORPHAN_AGE_S = 60.0

_logger = logging.getLogger(__name__)


class SnapshotStore:
    """The bucket of one shard. A slot's description is the log sequence that it holds the state of.

    A save that is cut off leaves chunks that no slot names. They are purged by a later save, orphan_age_s (seconds)
    after they were first seen: longer than a save may last, since another process may be about to name them.
    """

    def __init__(self, js: JetStreamContext, bucket: str, orphan_age_s: float = ORPHAN_AGE_S) -> None:
        self._js = js
        self._bucket = bucket
        self._stream = subjects.object_stream(bucket)
        self._store: ObjectStore | None = None
        self._orphan_age_s = orphan_age_s
        self._orphans: dict[str, float] = {}

    async def create(self, replicas: int = 1) -> None:
        """Make the bucket if it is not there; only schedulers may."""
        try:
            self._store = await self._js.object_store(self._bucket)
        except nats.js.errors.NotFoundError:
            self._store = await self._js.create_object_store(self._bucket, replicas=replicas)

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await self._js.object_store(self._bucket)
        return self._store

    async def save(self, data: bytes, seq: int) -> None:
        """Replace the oldest slot, and purge what saves that were cut off have left.

        Raises TimeoutError or nats.errors.Error, unless the whole snapshot is stored.
        """
        store = await self._open()
        held = await self._slots(store)
        free = [slot for slot in range(SLOTS) if slot not in {slot for _, slot in held}]
        slot = free[0] if free else held[0][1]
        meta = api.ObjectMeta(
            description=str(seq),
            options=api.ObjectMetaOptions(max_chunk_size=CHUNK_BYTES),
        )
        saved = await asyncio.wait_for(store.put(f"slot-{slot}", data, meta), SAVE_TIMEOUT_S)
        num_chunks = await self._chunks()
        if num_chunks.get(self._chunk_subject(saved), 0) != saved.chunks:
            raise nats.errors.Error(f"chunks of the snapshot of record {seq} are gone")
        await self._purge_orphans(store, num_chunks)

    def _chunk_subject(self, info: api.ObjectInfo) -> str:
        return subjects.object_chunks(self._bucket, info.nuid)

    async def _chunks(self) -> dict[str, int]:
        """Stored chunks by subject; each save has a subject of its own."""
        of_all = subjects.object_chunks(self._bucket, ">")
        info = await self._js.stream_info(self._stream, subjects_filter=of_all)
        return info.state.subjects or {}

    async def _purge_orphans(self, store: ObjectStore, chunks: Collection[str]) -> None:
        """chunks: subjects that were seen before the slots are looked at, so that a slot may name all that count."""
        named = {self._chunk_subject(info) for _, info in await self._infos(store)}
        now = asyncio.get_running_loop().time()
        self._orphans = {subject: self._orphans.get(subject, now) for subject in chunks if subject not in named}
        for subject, since in self._orphans.items():
            if now - since >= self._orphan_age_s:
                _logger.info("purging the rest of a snapshot that was cut off: %s", subject)
                await self._js.purge_stream(self._stream, subject=subject)

    async def load(self, min_seq: int, oldest: bool = False) -> bytes | None:
        """The newest (or oldest) readable snapshot of record min_seq or later, None without any."""
        store = await self._open()
        held = [(seq, slot) for seq, slot in await self._slots(store) if seq >= min_seq]
        for seq, slot in held if oldest else reversed(held):
            try:
                result = await asyncio.wait_for(store.get(f"slot-{slot}"), LOAD_TIMEOUT_S)
            except (nats.errors.Error, OSError, TimeoutError) as error:
                _logger.warning("snapshot of record %d in slot %d is not readable: %s", seq, slot, error)
                continue
            if result.data is not None:
                return bytes(result.data)
        return None

    async def _infos(self, store: ObjectStore) -> list[tuple[int, api.ObjectInfo]]:
        """(slot, info) of what is stored."""
        infos = []
        for slot in range(SLOTS):
            try:
                infos.append((slot, await store.get_info(f"slot-{slot}")))
            except (nats.js.errors.NotFoundError, nats.js.errors.ObjectNotFoundError):
                continue
        return infos

    async def _slots(self, store: ObjectStore) -> list[tuple[int, int]]:
        """(seq, slot) of what is stored, oldest first."""
        return sorted(
            (int(info.description), slot)
            for slot, info in await self._infos(store)
            if info.description and info.description.isdigit()
        )
