"""Contents of blocks that lie in a worker's swap space: a second, slower tier of its prefix cache.

What is preempted keeps its full blocks there, by the names of their contents, until the slots are needed for others.
When it is bound again, blocks that the device no longer holds come back from there instead of being computed.
Transfers travel with plans, and a worker executes plans in order: blocks go out before whoever gets them writes, and
come in after that, before whoever has them reads.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from shared.messages.control import WorkerHeartbeat
from shared.messages.packed import INT32


class HostTier:
    """Of one worker in one epoch, whose beginning empties it. The oldest contents go first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.is_worthwhile = True
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_slots - 1, -1, -1))
        self._leaving: set[bytes] = set()  # what comes in with the next plan: its slots stay as they are until then
        self._out: dict[int, int] = {}  # slot: block
        self._in: dict[int, int] = {}  # block: slot

    def learn_costs(self, heartbeat: WorkerHeartbeat) -> None:
        """Swapping is worth it where it takes less time than computing; as long as one is unknown, it is tried."""
        known = heartbeat.swap_us > 0 and heartbeat.compute_us > 0
        self.is_worthwhile = not known or heartbeat.swap_us < heartbeat.compute_us

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots

    def keep(self, blocks: Iterable[int], names: Iterable[bytes]) -> int:
        """Copies of these blocks, as far as there are slots; how many are sent there."""
        if not self.is_worthwhile:
            return 0
        num_sent = 0
        for block, name in zip(blocks, names, strict=False):
            if name in self._slots:
                self._slots.move_to_end(name)
                continue
            slot = self._take_slot()
            if slot is None:
                break
            self._slots[name] = slot
            self._out[slot] = block
            num_sent += 1
        return num_sent

    def find_hits(self, names: Sequence[bytes], first: int, max_hits: int) -> int:
        """How many contents from the first-th on lie here one after the other, up to the max_hits-th."""
        num_hits = 0
        for name in islice(names, first, max_hits):
            if name not in self._slots:
                break
            num_hits += 1
        return num_hits

    def fetch(self, names: Iterable[bytes], blocks: Iterable[int]) -> None:
        """These contents into these blocks, with the next plan; find_hits has found them."""
        for name, block in zip(names, blocks, strict=True):
            self._slots.move_to_end(name)
            self._leaving.add(name)
            self._in[block] = self._slots[name]

    def take_transfers(self) -> tuple[bytes, bytes]:
        """For the next plan: pairs (block, slot) that go out, then pairs (slot, block) that come in."""
        if not self._out and not self._in:
            return b"", b""
        out = array(INT32, chain.from_iterable((block, slot) for slot, block in self._out.items()))
        back = array(INT32, chain.from_iterable((slot, block) for block, slot in self._in.items()))
        self._out.clear()
        self._in.clear()
        self._leaving.clear()
        return out.tobytes(), back.tobytes()

    def forget(self, names: Iterable[bytes]) -> None:
        """Nobody finds these contents any more."""
        for name in names:
            if name in self._slots and name not in self._leaving:
                self._free.append(self._drop(name))

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next((name for name in self._slots if name not in self._leaving), None)
        return None if oldest is None else self._drop(oldest)

    def _drop(self, name: bytes) -> int:
        """The slot, which is free now."""
        slot = self._slots.pop(name)
        self._out.pop(slot, None)
        return slot

    def check_integrity(self) -> list[str]:
        """Everything that is wrong; empty when all is well."""
        used = sorted([*self._slots.values(), *self._free])
        return [] if used == list(range(self.num_slots)) else [f"swap slots are {used} of {self.num_slots}"]
