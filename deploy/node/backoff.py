"""How long a supervisor waits before it starts a dead process again. Pure: times come as arguments."""

import msgspec

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
STABLE_AFTER_S = 10.0


class Backoff(msgspec.Struct):
    """At once the first time, then 0.1, 0.2, 0.4 ... up to 5 s; a process that ran for 10 s starts anew at once.

    num_failures: deaths in a row, each after less than 10 s of running.
    """

    num_failures: int = 0

    def next_delay(self, ran_s: float) -> float:
        """Seconds to wait after a death; ran_s is how long the process had run."""
        self.num_failures = 0 if ran_s >= STABLE_AFTER_S else self.num_failures
        self.num_failures += 1
        if self.num_failures == 1:
            return 0.0
        exponent = min(self.num_failures - 2, 32)
        delay: float = FIRST_DELAY_S * 2**exponent
        return min(MAX_DELAY_S, delay)
