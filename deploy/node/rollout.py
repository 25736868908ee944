"""Restarting the processes of a running node, one at a time so that nobody notices, or service by service.

Where two starts of a process can live side by side, the new one is ready before the old one is told to drain. A worker
owns its device's memory and goes first: its sequences go on elsewhere, or wait.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from deploy.node.child import Child
from deploy.node.folder import DataFolder
from deploy.node.keeper import Keeper

# The leading scheduler comes after its standbys, gateways come last: their streams may take long to end.
ROLLING_ORDER = ("nats-server", "tokenizer", "detokenizer", "scheduler", "worker", "gateway")
SIDE_BY_SIDE = ("tokenizer", "detokenizer", "scheduler", "gateway")
POLL_S = 0.1
NUM_LAST_WORDS = 12

Report = Callable[[str, str, int | None], None]


class RestartFailed(RuntimeError):
    """A process did not come up again, or did not go by itself; what was not begun yet runs on as it was."""


class Rollout:
    """One restart. report(process, stage, pid) is told of every stage: starting, draining, ready.

    everyone: all keepers of the node, which must be ready again before the next process's turn. ready_timeout_s: for
    each process. goes_on: asked before each process; False ends the restart there. hurry: ends drains under way.
    """

    def __init__(
        self,
        everyone: Sequence[Keeper],
        folder: DataFolder,
        ready_timeout_s: float,
        hurry: asyncio.Event,
        report: Report,
        goes_on: Callable[[], bool],
    ) -> None:
        self._everyone = everyone
        self._folder = folder
        self._ready_timeout_s = ready_timeout_s
        self._hurry = hurry
        self._report = report
        self._goes_on = goes_on
        self._unclean: list[str] = []

    async def one_by_one(self, roles: Iterable[str]) -> None:
        """Restart every process of these services. Raises RestartFailed."""
        for role in _ordered(roles):
            waiting = self._of_role(role)
            while waiting:
                if not self._goes_on():
                    raise RestartFailed("nobody waits for this restart any more: it ends here")
                keeper = waiting.pop(await _follower_first(waiting))
                if role in SIDE_BY_SIDE:
                    await self._replace(keeper)
                else:
                    await self._restart_in_place(keeper, keeper.process.drain_s)
                await self._until_all_ready(keeper)
        self._check_clean()

    async def together(self, roles: Iterable[str], drain_s: float) -> None:
        """Stop and start the processes of each service at once, with drain_s for what runs. Raises RestartFailed."""
        for role in _ordered(roles):
            async with asyncio.TaskGroup() as group:
                for keeper in self._of_role(role):
                    group.create_task(self._restart_in_place(keeper, drain_s))
        self._check_clean()

    async def _replace(self, keeper: Keeper) -> None:
        self._report(keeper.name, "starting", None)
        child = await keeper.spawn()
        try:
            await self._until_ready(keeper, child)
            before = keeper.replace_by(child)
        except (RestartFailed, OSError):
            await child.stop(0.0, self._hurry)
            raise
        if before is not None:
            self._report(keeper.name, "draining", before.pid)
            self._take_note(keeper, before, await before.stop(keeper.process.drain_s, self._hurry))
        self._report(keeper.name, "ready", child.pid)

    async def _restart_in_place(self, keeper: Keeper, drain_s: float) -> None:
        before = keeper.child
        if before is not None:
            self._report(keeper.name, "draining", before.pid)
            self._take_note(keeper, before, await keeper.end_child(drain_s, self._hurry))
        self._report(keeper.name, "starting", None)
        while keeper.child is None or keeper.child is before:  # run() starts it within a moment
            if keeper.start_error:
                raise RestartFailed(f"the new {keeper.name} cannot be started: {keeper.start_error}")
            await asyncio.sleep(POLL_S)
        child = keeper.child
        await self._until_ready(keeper, child)
        self._report(keeper.name, "ready", child.pid)

    async def _until_ready(self, keeper: Keeper, child: Child) -> None:
        until_s = time.monotonic() + self._ready_timeout_s
        while not await child.probe.is_ready():
            if child.status is not None:
                raise RestartFailed(self._obituary(keeper, f"ended with status {child.status}"))
            if time.monotonic() > until_s:
                raise RestartFailed(self._obituary(keeper, f"was not ready within {self._ready_timeout_s:g} s"))
            await asyncio.sleep(POLL_S)

    async def _until_all_ready(self, restarted: Keeper) -> None:
        """The next turn comes when everything works again with what was restarted."""
        until_s = time.monotonic() + self._ready_timeout_s
        waiting = list(self._everyone)
        while waiting:
            answers = await asyncio.gather(*(keeper.is_ready() for keeper in waiting))
            waiting = [keeper for keeper, ready in zip(waiting, answers, strict=True) if not ready]
            if waiting and time.monotonic() > until_s:
                raise RestartFailed(f"{waiting[0].name} is not ready since {restarted.name} was restarted")
            await asyncio.sleep(POLL_S if waiting else 0)

    def _of_role(self, role: str) -> list[Keeper]:
        return [keeper for keeper in self._everyone if keeper.process.role == role]

    def _take_note(self, keeper: Keeper, child: Child, is_clean: bool) -> None:
        if not is_clean:
            self._unclean.append(f"{keeper.name} ended with status {child.status}")

    def _check_clean(self) -> None:
        if self._unclean:
            raise RestartFailed(f"all run anew, but {', '.join(self._unclean)}")

    def _obituary(self, keeper: Keeper, what: str) -> str:
        words = self._folder.last_words(keeper.name, NUM_LAST_WORDS)
        return f"the new {keeper.name} {what}. The end of {self._folder.log(keeper.name)}:\n{words}"


def _ordered(roles: Iterable[str]) -> list[str]:
    wanted = set(roles)
    return [role for role in ROLLING_ORDER if role in wanted]


async def _follower_first(keepers: Sequence[Keeper]) -> int:
    """The place of one that does not lead, if there is one."""
    for place, keeper in enumerate(keepers):
        if keeper.child is None or not await keeper.child.probe.is_leading():
            return place
    return 0
