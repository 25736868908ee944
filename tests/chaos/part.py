"""One part of a run: a stack under load, watched, with what `finish` found in the end."""

import asyncio
import contextlib
import re
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.chaos.faults import FaultDraw
from tests.chaos.injector import Injector
from tests.chaos.ledger import Ledger
from tests.chaos.load import Load
from tests.chaos.options import MODEL, Options
from tests.chaos.processes import ProcessWatch
from tests.chaos.resting import Holdings, come_to_rest, holdings
from tests.chaos.stack import Stack, running_stack
from tests.chaos.stalls import FaultRecord
from tests.chaos.witness import Witness
from tests.chaos.words import Words
from tests.nodes import wrongs
from tests.waiting import LIMIT_S, until

WARM_UP_S = 4.0

Say = Callable[[str], None]
_DEATH = re.compile(r"^(\S+) died \((.+?)\)", re.MULTILINE)


class Part:
    """A running part. baseline: what every process held at rest before any load but a short warm-up."""

    def __init__(
        self, options: Options, stack: Stack, words: Words, ledger: Ledger, witness: Witness, say: Say
    ) -> None:
        self.options = options
        self.words = words
        self.stack = stack
        self.ledger = ledger
        self.witness = witness
        self.say = say
        self.baseline: Holdings = {}
        self._said_at_start = len(stack.node.output.read_text())
        kinds = options.faults or ("kill",)
        self.injector = Injector(stack, FaultDraw(options.seed, kinds, options.services), say)
        self.watch = ProcessWatch(stack, self.injector.records)
        self.load = self._make_load(options.streams)

    def _make_load(self, num_streams: int) -> Load:
        options = self.options
        ports = self.stack.gateways()
        return Load(ports, self.words, num_streams, options.max_tokens, options.seed, self.ledger)

    async def warm_up(self) -> None:
        """A little load, so that connections and caches are there, then the baseline at rest."""
        load = self._make_load(4)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await asyncio.sleep(WARM_UP_S)
            load.stop()
        await self.until_outcomes()
        await asyncio.sleep(1.0)  # what ends with the last stream: its connection, its attachment
        self.baseline = await holdings(self.stack)

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """The load runs while the context lasts; then every stream is read to its end."""
        running = asyncio.create_task(self.load.run())
        try:
            await self._until_flowing(running)
            yield
            self.load.stop()
            await running
        finally:
            running.cancel()

    async def _until_flowing(self, running: "asyncio.Task[None]") -> None:
        end = asyncio.get_running_loop().time() + LIMIT_S
        while self.load.watch.num_tokens < 10 * self.options.streams:
            if running.done():
                await running
            if asyncio.get_running_loop().time() > end:
                self.say("the load does not flow: see the evidence")
                return
            await asyncio.sleep(0.05)

    async def until_outcomes(self) -> None:
        """Until the log holds the outcome of every request, or LIMIT_S are over."""
        with contextlib.suppress(AssertionError):  # the ledger tells which have none
            await until(lambda: self.witness.is_live and not self.ledger.num_open)

    async def rest(self) -> dict[str, Any]:
        """Seconds until all processes were at rest, and what was not."""
        seconds, left = await come_to_rest(self.stack, self.baseline)
        for line in left:
            self.say(f"not at rest: {line}")
        return {"seconds": seconds, "left": left}

    async def verify(self) -> dict[str, Any]:
        """`tokenbus log verify --json`: what it finds wrong, and whether its tokens are those that clients received."""
        report = await asyncio.to_thread(self.stack.node.verify)
        digests = self.ledger.digests
        held = {name: each for name, each in report["requests"].items() if name in digests}
        differ = [name for name, each in held.items() if _digest(each["token_ids"]) != digests[name]]
        return {"wrong": wrongs(report), "compared": len(held), "differ": differ, "records": report["num_records"]}

    def _deaths(self) -> dict[str, dict[str, int]]:
        """How processes ended since all were ready. A scheduler that learns that another one leads ends itself with
        status 1: told apart."""
        found = deaths(self.stack.node.output.read_text()[self._said_at_start :])
        for name in found.keys() & set(self.stack.names("scheduler")):
            num_deposed = self.stack.node.log(name).count("LostLeadership")
            found[name]["deposed"] = num_deposed
            found[name]["exit status 1"] = found[name].get("exit status 1", 0) - num_deposed
        return {name: {how: number for how, number in hows.items() if number} for name, hows in found.items()}

    def findings(self) -> dict[str, Any]:
        """What ledger, witness and watch have found; call once, after everything is over."""
        self.ledger.close()
        fold = self.witness.fold
        return {
            "ledger": dict(self.ledger.counts),
            "evidence": self.ledger.evidence,
            "log": {"wrong": self.witness.wrongs(), "counts": dict(fold.counts), "records": fold.seq},
            "witness": {"reloads": self.witness.num_reloads, "error": repr(self.witness.error or "")},
            "pids": [change for change in map(_change, self.watch.changes) if not change["was_hit"]],
            "deaths": self._deaths(),
            "skipped_faults": self.injector.num_skipped,
        }


def _change(change: Any) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("name", "old", "new", "at", "was_hit")}


def _digest(token_ids: list[int]) -> int:
    return crc32(array("i", token_ids))


def deaths(output: str) -> dict[str, dict[str, int]]:
    """By process: how it died (`exit status 0`, `killed by signal 9`) and how often, as the node has told."""
    found: dict[str, Counter[str]] = {}
    for name, how in _DEATH.findall(output):
        found.setdefault(name, Counter())[how] += 1
    return {name: dict(counts) for name, counts in sorted(found.items())}


def faults_by_victim(records: list[FaultRecord]) -> dict[str, dict[str, int]]:
    """Numbers of faults by service and kind."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        found.setdefault(record.service, Counter())[record.kind] += 1
    return {service: dict(counts) for service, counts in sorted(found.items())}


@contextlib.asynccontextmanager
async def running_part(options: Options, folder: Path, say: Say, *node_options: str) -> AsyncIterator[Part]:
    """A part on a stack of its own, warmed up."""
    say("starting " + " ".join(node_options))
    async with running_stack(folder, *node_options) as stack:
        words = await asyncio.to_thread(Words, MODEL)
        ledger = Ledger(words.decode)
        witness = await Witness.start(ledger, stack.nats_url)
        try:
            part = Part(options, stack, words, ledger, witness, say)
            watching = asyncio.create_task(part.watch.run())
            try:
                await part.warm_up()
                yield part
            finally:
                watching.cancel()
        finally:
            await witness.stop()
