"""The sequences of one model that wait for a worker, in order."""

from services.scheduler.core.order import Order
from services.scheduler.core.sequence import Sequence


class WaitingQueue(Order[Sequence]):
    """num_tokens: known tokens of all that wait, kept up to date; a sequence's own number stands still meanwhile."""

    __slots__ = ("num_tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0

    def add(self, item: Sequence) -> None:
        """See Order."""
        super().add(item)
        self.num_tokens += item.num_tokens

    def remove(self, item: Sequence) -> None:
        """See Order."""
        super().remove(item)
        self.num_tokens -= item.num_tokens

    def check_integrity(self) -> list[str]:
        """What is wrong with the counter; empty when all is well."""
        num_tokens = sum(sequence.num_tokens for sequence in self)
        return [] if num_tokens == self.num_tokens else [f"{num_tokens} tokens wait, counted {self.num_tokens}"]
