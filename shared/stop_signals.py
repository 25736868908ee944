"""SIGTERM and SIGINT: the first asks for a drain, a later one does not wait for it."""

import time
from collections.abc import Callable

SAME_STOP_S = 0.3  # just, timeout and others send the process group and the process a signal each: that is one wish


class StopSignals:
    """Counts signals. stop is called with the first one, hurry with each that comes more than SAME_STOP_S later."""

    def __init__(self, stop: Callable[[], object], hurry: Callable[[], object]) -> None:
        self._stop = stop
        self._hurry = hurry
        self._first_s: float | None = None

    def on_signal(self) -> None:
        """A signal came."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            self._stop()
        elif now_s - self._first_s > SAME_STOP_S:
            self._hurry()
