"""How long the engine has not come to an epoch that was announced to it."""


class StuckClock:
    """Time since an epoch was announced, in ticks of the event loop. Times are seconds on one monotonic clock.

    A tick counts for at most MAX_TICK_S: a process that was stopped for a while cannot have opened anything meanwhile.
    """

    MAX_TICK_S = 0.5

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._epoch = 0
        self._waited_s = 0.0
        self._last_s = 0.0

    def is_over(self, now_s: float, announced_epoch: int) -> bool:
        """To be asked at every tick, with the epoch that is announced and not opened, 0 for none: whether it has been
        for longer than the limit. A newer epoch does not begin the time anew: the engine has to come to either."""
        if not announced_epoch:
            self._waited_s = 0.0
        elif self._epoch:
            self._waited_s += min(now_s - self._last_s, self.MAX_TICK_S)
        self._epoch = announced_epoch
        self._last_s = now_s
        return self._waited_s > self.limit_s
