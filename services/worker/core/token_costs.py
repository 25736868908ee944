"""What a token costs this worker: to be computed in a prompt, and to be swapped out and in again."""

_LEAST_TOKENS = 64  # of a step that says what a prompt's token costs: a small one mostly reads the weights
_SHARE = 0.2  # of a new measurement in the mean


class TokenCosts:
    """Running means in microseconds; 0 until something was measured."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.compute_us = 0.0
        self.swap_us = 0.0

    def observe_step(self, num_tokens: int, num_rows: int, step_s: float) -> None:
        """A step of so many tokens, of which num_rows were sampled; counted if it is mostly prompts."""
        if num_tokens >= _LEAST_TOKENS and num_tokens >= 4 * num_rows:
            self.compute_us = _mean(self.compute_us, 1e6 * step_s / num_tokens)

    def observe_swap(self, num_blocks: int, swap_s: float) -> None:
        """So many blocks went one way, out or in."""
        if num_blocks:
            self.swap_us = _mean(self.swap_us, 2e6 * swap_s / (num_blocks * self._block_size))


def _mean(before: float, new: float) -> float:
    return new if before == 0 else before + _SHARE * (new - before)
