"""What a person sees of a node while it starts and stops: one moving line on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.status import Status

from deploy.cli.output import OutputClosed


class NodeDisplay:
    """A Reporter for deploy.node, on the console given.

    on_unread: called when the console turns out to have no reader any more. The news that was meant for it comes from
    the midst of running processes, so no OutputClosed is raised there; is_unread tells.
    """

    def __init__(self, console: Console, on_unread: Callable[[], None] = lambda: None) -> None:
        self.is_unread = False
        self._console = console
        self._on_unread = on_unread
        self._status: Status | None = None

    def start(self, text: str) -> None:
        """Show a spinner with this text, until done."""
        if self._console.is_terminal:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._print(text)

    def done(self) -> None:
        """Remove the spinner."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def on_waiting(self, ready: Sequence[str], waiting: Mapping[str, str]) -> None:
        others = ", ".join(f"{name} ({state})" if state else name for name, state in waiting.items())
        self._show(f"Starting: {len(ready)} ready" + (f", waiting for {others}" if others else ""))

    def on_death(self, process: str, status: int, delay_s: float) -> None:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        self._print(f"{process} died ({how}), starting it again {_when(delay_s)}", style="yellow")

    def on_start_failed(self, process: str, reason: str, delay_s: float) -> None:
        text = f"{process} cannot be started ({reason}), trying again {_when(delay_s)}"
        self._print(text, style="yellow")

    def on_stopping(self, role: str) -> None:
        if self._status is not None:
            self._status.update(f"Stopping {role}")

    def on_stage(self, process: str, stage: str, pid: int | None) -> None:
        """A process that is being restarted has come this far."""
        text = f"{process} {stage}" + ("" if pid is None else f" (process {pid})")
        if stage == "ready" and self._status is not None:
            self._print(text)
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        else:
            self._print(text)

    def _print(self, text: str, style: str | None = None) -> None:
        try:
            self._console.print(text, style=style, markup=False)
        except OutputClosed:
            self.is_unread = True
            self._on_unread()


def _when(delay_s: float) -> str:
    return "at once" if delay_s == 0 else f"in {delay_s:g} s"
