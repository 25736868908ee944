"""Snapshots of a fold in JetStream's object store, a few slots written in turn."""

import asyncio
import logging

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext, api
from nats.js.object_store import ObjectStore

SLOTS = 3
CHUNK_BYTES = 1024 * 1024
SAVE_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class SnapshotStore:
    """The bucket of one shard. A slot's description is the log sequence that it holds the state of."""

    def __init__(self, js: JetStreamContext, bucket: str) -> None:
        self._js = js
        self._bucket = bucket
        self._store: ObjectStore | None = None

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
        """Replace the oldest slot. Raises TimeoutError or nats.errors.Error."""
        store = await self._open()
        held = await self._slots(store)
        free = [slot for slot in range(SLOTS) if slot not in {slot for _, slot in held}]
        slot = free[0] if free else held[0][1]
        meta = api.ObjectMeta(
            description=str(seq),
            options=api.ObjectMetaOptions(max_chunk_size=CHUNK_BYTES),
        )
        await asyncio.wait_for(store.put(f"slot-{slot}", data, meta), SAVE_TIMEOUT_S)

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

    async def _slots(self, store: ObjectStore) -> list[tuple[int, int]]:
        """(seq, slot) of what is stored, oldest first."""
        held = []
        for slot in range(SLOTS):
            try:
                info = await store.get_info(f"slot-{slot}")
            except (nats.js.errors.NotFoundError, nats.js.errors.ObjectNotFoundError):
                continue
            if info.description and info.description.isdigit():
                held.append((int(info.description), slot))
        return sorted(held)
