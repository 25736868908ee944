"""Snapshots in the object store of a real server: what a save that was cut off leaves, and what it must not harm."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import pytest
from nats.js.api import PubAck

from shared.bus import snapshots
from shared.bus.client import Bus
from shared.bus.snapshots import SLOTS, SnapshotStore
from tests.servers import NatsServer
from tests.waiting import LIMIT_S

BUCKET = "SNAP_s0"
CHUNK_BYTES = 1000
NUM_CHUNKS = 200
DATA = b"x" * (CHUNK_BYTES * NUM_CHUNKS)


@pytest.fixture
async def bus(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", CHUNK_BYTES)
    bus = await Bus.connect(nats_server.url, "test-1")
    yield bus
    await bus.close()


async def new_store(bus: Bus, orphan_age_s: float) -> SnapshotStore:
    store = SnapshotStore(bus.jetstream(LIMIT_S), BUCKET, orphan_age_s)
    await store.create()
    return store


async def stored(bus: Bus) -> dict[str, int]:
    """Chunks by the save that they are of."""
    info = await bus.jetstream(LIMIT_S).stream_info(f"OBJ_{BUCKET}", subjects_filter=f"$O.{BUCKET}.C.>")
    return info.state.subjects or {}


async def save_cut_off(bus: Bus, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that ends, as a time limit would end it, once half of its chunks are stored."""
    before = await stored(bus)
    publish = store._js.publish
    num_sent = 0

    async def publish_half(*args: Any, **kwargs: Any) -> PubAck:
        nonlocal num_sent
        ack = await publish(*args, **kwargs)
        num_sent += 1
        if num_sent == NUM_CHUNKS // 2:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        return ack

    with monkeypatch.context() as patch:
        patch.setattr(store._js, "publish", publish_half)
        with pytest.raises(asyncio.CancelledError):
            await store.save(DATA, 99)
    left = await stored(bus)
    assert sum(left.values()) >= sum(before.values()) + NUM_CHUNKS // 2
    assert len(left) == len(before) + 1


async def test_chunks_of_a_save_that_was_cut_off_go_with_the_next_one(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await new_store(bus, 0.0)
    await store.save(b"first", 1)
    await save_cut_off(bus, store, monkeypatch)
    await store.save(b"second" * CHUNK_BYTES, 2)
    assert sorted((await stored(bus)).values()) == [1, 6]
    assert await store.load(0) == b"second" * CHUNK_BYTES
    assert await store.load(0, oldest=True) == b"first"


async def test_chunks_that_another_process_may_be_about_to_name_are_left_alone(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await new_store(bus, 60.0), await new_store(bus, 60.0)
    await save_cut_off(bus, other, monkeypatch)
    for seq in range(1, 4):
        await store.save(b"x", seq)
    assert len(await stored(bus)) == 4


async def test_slots_are_written_in_turn_and_hold_no_old_chunks(bus: Bus) -> None:
    store = await new_store(bus, 0.0)
    for seq in range(1, 8):
        await store.save(b"%d" % seq, seq)
        assert len(await stored(bus)) == min(seq, SLOTS)
    assert await store.load(0, oldest=True) == b"5"
    assert await store.load(6, oldest=True) == b"6"
    assert await store.load(0) == b"7"
    assert await store.load(8) is None


async def test_a_snapshot_whose_chunks_were_purged_meanwhile_counts_as_not_saved(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await new_store(bus, 60.0)
    count = store._chunks

    async def purged_first() -> dict[str, int]:
        await bus.jetstream(LIMIT_S).purge_stream(f"OBJ_{BUCKET}", subject=f"$O.{BUCKET}.C.>")
        return await count()

    monkeypatch.setattr(store, "_chunks", purged_first)
    with pytest.raises(nats.errors.Error, match="gone"):
        await store.save(DATA, 1)
