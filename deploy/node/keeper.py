"""Keeps one process running: starts it, starts it again when it dies, lets another start take its place."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from deploy.node.backoff import Backoff
from deploy.node.child import Child
from deploy.node.folder import DataFolder
from deploy.node.processes import NodeProcess


class Keeper:
    """One process of a node. run() is its life; stop() ends it.

    child: its run now, None between an end and the next start. status: exit status of the last death (negative: the
    signal), None before. start_error: why the last start was none, such as a full disk; "" if it was one. num_deaths:
    ends that nobody asked for, starts that failed among them.
    """

    def __init__(
        self, process: NodeProcess, folder: DataFolder, on_death: Callable[["Keeper", float], None] | None = None
    ) -> None:
        self.process = process
        self.child: Child | None = None
        self.status: int | None = None
        self.start_error = ""
        self.num_deaths = 0
        self._folder = folder
        self._on_death = on_death
        self._alive: list[Child] = []  # the child, and what drains or gets ready beside it
        self._asked_to_end: Child | None = None
        self._replaced = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """The process's name on the node."""
        return self.process.name

    @property
    def pid(self) -> int | None:
        """Its process id now, None between a death and the next start."""
        return self.child.pid if self.child is not None else None

    async def is_ready(self) -> bool:
        """Whether it runs and can do its work now."""
        child = self.child
        return child is not None and await child.probe.is_ready()

    async def state(self) -> str:
        """What it is at, in its own words; empty where it does not run or does not say."""
        child = self.child
        return "" if child is None else await child.probe.state()

    async def run(self) -> None:
        """Start the process again and again, at once first and then with growing delays, until stop()."""
        backoff = Backoff()
        try:
            while not self._stopping.is_set():
                started_s = time.monotonic()
                if await self._start_if_gone():
                    child = await self._until_child_ends()
                    if child is self._asked_to_end or self._stopping.is_set():
                        continue
                    self.status = child.status
                self.num_deaths += 1
                delay_s = backoff.next_delay(time.monotonic() - started_s)
                if self._on_death is not None:
                    self._on_death(self, delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
        except BaseException:  # nobody is left to stop them; after stop() what still drains has its time
            for child in self._alive:
                child.kill()
            raise
        finally:
            self._ended.set()

    async def spawn(self) -> Child:
        """A further start beside the current one; replace_by() puts it in its place. Raises OSError."""
        child = await Child.spawn(self.process.prepare(), self._folder.log(self.name))
        self._alive = [*(each for each in self._alive if each.status is None), child]
        if self._stopping.is_set():
            child.kill()
        return child

    def replace_by(self, child: Child) -> Child | None:
        """From now on this is the process; the one before, if it lives, is the caller's to stop. OSError: nothing
        has changed."""
        self._folder.pid_file(self.name).write_text(f"{child.pid}\n", encoding="utf-8")
        before, self.child = self.child, child
        self._replaced.set()
        return before

    async def end_child(self, drain_s: float, hurry: asyncio.Event) -> bool:
        """End the current start (Child.stop), which is no death; run() then starts the next one at once."""
        child = self._asked_to_end = self.child
        return child is None or await child.stop(drain_s, hurry)

    def start_no_more(self) -> None:
        """What ends from now on is not started again."""
        self._stopping.set()

    async def stop(self, drain_s: float, hurry: asyncio.Event) -> bool:
        """End all that runs (Child.stop) and run(). False if something had to be killed or ended with an error."""
        self.start_no_more()
        alive = [child for child in self._alive if child.status is None]
        clean = await asyncio.gather(*(child.stop(drain_s, hurry) for child in alive))
        await self._ended.wait()
        return all(clean)

    async def _start_if_gone(self) -> bool:
        """Whether there is a child now; otherwise start_error says why not."""
        self.start_error = ""
        try:
            if self.child is None:
                await self._start()
        except OSError as error:
            self.start_error = str(error)
            return False
        return True

    async def _start(self) -> None:
        child = await self.spawn()
        try:
            if self.child is None:
                self.replace_by(child)
        finally:
            if self.child is not child:  # it failed, or a replacement got ready meanwhile and has the place
                child.kill()

    async def _until_child_ends(self) -> Child:
        """The current start, once it has ended; replacements are followed."""
        while True:
            child = self.child
            assert child is not None
            self._replaced.clear()
            ends: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(child.wait()),
                asyncio.ensure_future(self._replaced.wait()),
            ]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in ends:
                    each.cancel()
            if child is self.child and child.status is not None:
                self.child = None
                self._folder.pid_file(self.name).unlink(missing_ok=True)
                return child
