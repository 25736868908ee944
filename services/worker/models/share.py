"""What a decoder does differently that is one rank's share of a model: see shards.py for what each rank holds."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Communicator(Protocol):
    """Between the ranks of a group. Each rank makes the same calls in the same order, with equal shapes."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def add_up(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in x's place; the same on each of them to the last bit."""

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's [R, n] side by side, in the order of ranks: [R, size * n]."""

    def hand_out(self, x: Tensor) -> None:
        """What rank 0 has in x, to all others' x."""

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers."""


@dataclass(frozen=True, slots=True)
class Share:
    """vocab_size: of the whole model; this rank's part of embedding and lm_head begins at its rank times their rows."""

    communicator: Communicator
    vocab_size: int

    def embed(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """float32 [T, hidden size]: each rank looks up the ids that it holds, and zeros for others, so that the sum is
        exact. An id that is in nobody's part is NaN."""
        own = token_ids - self.communicator.rank * len(embedding)
        is_elsewhere = (own < 0) | (own >= len(embedding))
        found = embedding[own.masked_fill(is_elsewhere, 0)].float().masked_fill_(is_elsewhere.unsqueeze(1), 0.0)
        is_unknown = (token_ids < 0) | (token_ids >= self.vocab_size)
        return self.communicator.add_up(found).masked_fill_(is_unknown.unsqueeze(1), float("nan"))

    def whole_logits(self, logits: Tensor) -> Tensor:
        """[R, vocabulary] from each rank's columns."""
        return self.communicator.gather(logits)[:, : self.vocab_size].contiguous()
