"""Faults on a running stack: injects, heals, and keeps a record of each, with the time until its victim was well."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from tests.chaos.faults import NATS_SERVER, Fault, FaultDraw
from tests.chaos.stack import Stack
from tests.chaos.stalls import FaultRecord
from tests.waiting import LIMIT_S, until

READY_POLL_S = 0.2
DELAY_S = 0.2
JITTER_S = 0.1
SETTLE_S = 1.0  # after a pause or a cut: until others have noticed that it is back


class Injector:
    """records: all faults so far, in order. say: told of each in a line."""

    def __init__(self, stack: Stack, draw: FaultDraw, say: Callable[[str], None]) -> None:
        self.records: list[FaultRecord] = []
        self.num_skipped = 0
        self._stack = stack
        self._draw = draw
        self._say = say
        self._healing: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, every_s: float) -> None:
        """A fault every every_s, for so long; some pauses get a fault of the network in their middle. Then all heal."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(int(seconds / every_s)):
            await asyncio.sleep(begun + number * every_s - loop.time())
            await self.inject(self._draw.next())
            network = self._draw.next_network()
            if network is not None:
                await asyncio.sleep(begun + (number + 0.5) * every_s - loop.time())
                await self.inject(network)
        await asyncio.sleep(begun + seconds - loop.time())
        await self.heal_all()

    async def inject(self, fault: Fault) -> FaultRecord | None:
        """Hit the first of its services whose processes are all well; None, and counted, if there is none."""
        for service in fault.services:
            names = self._stack.names(service)
            if await self._are_well(names):
                return self._hit(fault, service, await self._victim(fault, service, names))
        self.num_skipped += 1
        self._say(f"no victim for {fault.kind}: no service is well")
        return None

    async def heal_all(self) -> None:
        """Wait until every fault is over and its victim well again."""
        while self._healing:
            await asyncio.gather(*self._healing)

    async def _are_well(self, names: list[str]) -> bool:
        if any(record.healed_at is None and record.name in names for record in self.records[-40:]):
            return False
        return all(await asyncio.gather(*(self._stack.is_ready(name) for name in names)))

    async def _victim(self, fault: Fault, service: str, names: list[str]) -> str:
        if service == "scheduler" and fault.hits_leader:
            leader = await self._stack.leader()
            if leader:
                return leader
        return names[int(fault.place * len(names))]

    def _hit(self, fault: Fault, service: str, name: str) -> FaultRecord:
        loop = asyncio.get_running_loop()
        record = FaultRecord(len(self.records), fault.kind, service, name, loop.time())
        if fault.seconds:
            record.detail["seconds"] = fault.seconds
        if service == "scheduler":
            record.detail["leader"] = fault.hits_leader
        if service != NATS_SERVER and len(self._stack.names(service)) == 1:
            record.detail["alone"] = True
        self.records.append(record)
        self._say(f"fault {record.number}: {fault.kind} {name} {fault.seconds or ''}")
        task = loop.create_task(self._carry_out(record, fault))
        self._healing.add(task)
        task.add_done_callback(self._on_healed)
        return record

    def _on_healed(self, task: "asyncio.Task[None]") -> None:
        self._healing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._say(f"a fault could not be carried out: {task.exception()!r}")

    async def _carry_out(self, record: FaultRecord, fault: Fault) -> None:
        name = record.name
        pid = self._stack.pid(name)
        record.detail["pid"] = pid
        if name == NATS_SERVER:
            await self._stack.restart_server(fault.kind)
        elif fault.kind in ("kill", "term"):
            self._stack.signal(name, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
            with contextlib.suppress(AssertionError):  # told by the wait for readiness that follows
                await until(lambda: self._stack.pid(name) not in (pid, None))
        elif fault.kind in ("blink", "stall"):
            self._stack.signal(name, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._stack.signal(name, signal.SIGCONT)
            await asyncio.sleep(SETTLE_S)
        else:
            edge = self._stack.edge(name)
            values = {"delay_s": DELAY_S, "jitter_s": JITTER_S} if fault.kind == "delay" else {}
            self._stack.proxy.send(edge, fault.kind, **values)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._stack.proxy.send(edge, "heal")
            await asyncio.sleep(SETTLE_S)
        await self._until_ready(name)
        record.healed_at = asyncio.get_running_loop().time()

    async def _until_ready(self, name: str) -> None:
        end = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < end:
            if await self._stack.is_ready(name):
                return
            await asyncio.sleep(READY_POLL_S)
        self._say(f"{name} is not ready {LIMIT_S:g} s after its fault")
