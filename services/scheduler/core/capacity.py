"""What a worker can run at all, with or without room at the moment."""

import msgspec

from services.scheduler.core.sequence import Sequence
from shared.messages.control import WorkerHeartbeat


class Capacity(msgspec.Struct, frozen=True):
    """Limits of one worker that stand for its whole life. model: name and version."""

    model: tuple[str, str]
    block_size: int
    num_blocks: int
    max_model_len: int

    @classmethod
    def of(cls, heartbeat: WorkerHeartbeat) -> "Capacity":
        """The limits that a worker tells."""
        return cls(
            model=(heartbeat.model, heartbeat.model_version),
            block_size=heartbeat.block_size,
            num_blocks=heartbeat.num_blocks,
            max_model_len=heartbeat.max_model_len,
        )

    def max_num_tokens(self, sequence: Sequence) -> int:
        """Prompt and output tokens at which a sequence must stop here, by max_tokens or by max_model_len."""
        return min(sequence.num_prompt_tokens + sequence.state.request.sampling.max_tokens, self.max_model_len)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def refusal(self, sequence: Sequence) -> str | None:
        """Why this worker can never run the sequence from its prompt to its last token, None if it can."""
        if sequence.num_prompt_tokens + 1 > self.max_model_len:
            return (
                f"This model's maximum context length is {self.max_model_len} tokens, but the prompt has "
                f"{sequence.num_prompt_tokens} and at least one must be left for the answer."
            )
        # the last token is sampled but never computed
        num_blocks = self.num_blocks_for(self.max_num_tokens(sequence) - 1)
        if num_blocks > self.num_blocks:
            return (
                f"The request needs up to {num_blocks} KV cache blocks of {self.block_size} tokens, "
                f"but a worker has {self.num_blocks} in all."
            )
        return None

    def can_go_on(self, sequence: Sequence) -> bool:
        """Whether the sequence, with the tokens that it has, can be run here to its end."""
        return sequence.num_tokens < self.max_num_tokens(sequence) and self.refusal(sequence) is None
