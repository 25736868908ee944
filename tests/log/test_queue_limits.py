"""How much may wait: one rule for tokenizers and the scheduler."""

import pytest

from shared.queue_limits import QueueLimits


@pytest.mark.parametrize(
    ("queued", "prompt", "refused"),
    [
        ((0, 0), 10**9, False),
        ((3, 60), 40, False),
        ((3, 60), 41, True),
        ((3, 100), 0, False),
        ((3, 101), 0, True),
        ((4, 0), 0, True),
    ],
)
def test_a_request_is_let_in_while_it_fits_or_nothing_else_waits(
    queued: tuple[int, int], prompt: int, refused: bool
) -> None:
    limits = QueueLimits(max_num_reqs=4, max_num_tokens=100)
    assert (limits.refusal(*queued, prompt) is not None) is refused


def test_without_a_limit_any_number_of_tokens_waits() -> None:
    assert QueueLimits().refusal(4095, 10**12, 10**12) is None
    assert QueueLimits().refusal(4096, 0, 1) is not None
