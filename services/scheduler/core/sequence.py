"""A sequence as the scheduler runs it: counters over the folded state, and the blocks it holds."""

from enum import Enum, auto

from services.scheduler.core.order import Key
from shared.block_hash import block_hash, root_hash
from shared.log.state import SequenceState
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import Request

TOKEN_BYTES = 4


class Status(Enum):
    """Where a sequence is.

    WAITING: in a waiting queue, at its folded position, without blocks and without rows in flight.
    RUNNING: bound to a worker, with blocks. SETTLING: preempted or moved, its blocks are given back, but rows of it
    are in flight at its worker; waits again once they are folded (rule 9). ENDED: in no plan any more.
    """

    WAITING = auto()
    RUNNING = auto()
    SETTLING = auto()
    ENDED = auto()


def cache_key(request: Request) -> str:
    """Salt of the sequence's block hashes. Only the client's salt, last of all, can hold any character, so two
    different keys never read the same."""
    return "\0".join((request.model, request.model_version, request.cache_salt))


class Sequence:
    """One choice of a request, for the scheduler. There is no prefill and no decode: num_computed_tokens catches up
    with num_tokens, and each time it does, a token is sampled and num_tokens grows by one.

        |<---------------------- num_tokens -------------------------->|
        |<------ prompt ------>|<-- outputs folded -->|<- in flight -->|
        |<----- num_computed_tokens ----->|                            |
        |<---------- num_given_tokens -------->|   the rest the worker has sampled itself since it was bound

    num_tokens: tokens whose place is known, those of rows in flight among them although their ids are not.
    num_computed_tokens: tokens whose KV is in the cache once every plan made so far is executed.
    num_given_tokens: tokens known when the sequence was bound; plans carry only ids below it.
    max_num_tokens: where its worker must stop (max_tokens and max_model_len), set when it is bound.
    block_table: blocks held; num_slots: tokens they have room for; num_sent_blocks: how many the worker was told of.
    loaded: whether a plan carried its NewSequence since it was bound.
    num_steps_in_flight: outstanding plans that hold it.
    block_hashes: names of its first full blocks of folded tokens; num_named_blocks of block_table are registered
    under theirs, the next one can be once next_name_at tokens are computed.
    last_worker: where it ran last, "" at first. suspect: its worker died under it, so it runs alone until a row of it
    is folded; num_solo_deaths: workers that died while it ran alone (rule 20).
    """

    __slots__ = (
        "_hashed_block_size",
        "_prompt",
        "block_hashes",
        "block_table",
        "cache_key",
        "id",
        "key",
        "last_worker",
        "loaded",
        "max_num_tokens",
        "model",
        "next_name_at",
        "num_computed_tokens",
        "num_given_tokens",
        "num_named_blocks",
        "num_prompt_tokens",
        "num_sent_blocks",
        "num_slots",
        "num_solo_deaths",
        "num_steps_in_flight",
        "num_tokens",
        "state",
        "status",
        "suspect",
    )

    def __init__(self, state: SequenceState) -> None:
        request = state.request
        self.state = state
        self.id = state.id
        self.key: Key = (request.priority, state.id)
        self.model = (request.model, request.model_version)
        self.cache_key = cache_key(request)
        self._prompt = request.prompt_token_ids
        self.num_prompt_tokens = len(self._prompt) // TOKEN_BYTES
        self.block_hashes: list[bytes] = []
        self._hashed_block_size = 0
        self.last_worker = ""
        self.suspect = False
        self.num_solo_deaths = 0
        self.block_table: list[int] = []
        self.wait()

    @property
    def num_folded_tokens(self) -> int:
        """Prompt and folded output tokens."""
        return self.num_prompt_tokens + len(self.state.tokens)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed_tokens

    def wait(self) -> None:
        """Back to the folded position, without blocks."""
        self.status = Status.WAITING
        self.num_tokens = self.num_given_tokens = self.num_folded_tokens
        self.max_num_tokens = 0
        self.num_computed_tokens = 0
        self.num_steps_in_flight = 0
        self.drop_blocks()

    def drop_blocks(self) -> None:
        """Forget the block table, which its manager has freed."""
        self.block_table = []
        self.num_slots = self.num_sent_blocks = self.num_named_blocks = self.next_name_at = 0
        self.loaded = False

    def token_bytes(self, start: int, stop: int) -> bytes:
        """Ids of tokens start..stop-1 as int32; all of them must be folded. Cost: the tokens asked for."""
        prompt = self._prompt[TOKEN_BYTES * start : TOKEN_BYTES * stop]
        if stop <= self.num_prompt_tokens:
            return prompt
        first_output = max(0, start - self.num_prompt_tokens)
        return prompt + pack_tokens(self.state.tokens[first_output : stop - self.num_prompt_tokens])

    def hash_blocks(self, block_size: int, num_tokens: int) -> list[bytes]:
        """Names of the full blocks of the first num_tokens tokens at least, each computed once.

        num_tokens: at most num_folded_tokens (rule 9: what is not folded may never have happened).
        """
        if self._hashed_block_size != block_size:
            self._hashed_block_size = block_size
            self.block_hashes = []
        hashes = self.block_hashes
        while (len(hashes) + 1) * block_size <= num_tokens:
            parent = hashes[-1] if hashes else root_hash(self.cache_key)
            start = len(hashes) * block_size
            hashes.append(block_hash(parent, self.token_bytes(start, start + block_size)))
        return hashes
