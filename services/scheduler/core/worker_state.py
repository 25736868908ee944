"""What the scheduler knows of one worker incarnation in one epoch."""

from array import array
from collections import deque
from collections.abc import Iterable

from services.scheduler.core.block_manager import BlockManager
from services.scheduler.core.capacity import Capacity
from services.scheduler.core.host_tier import HostTier
from services.scheduler.core.order import Order
from services.scheduler.core.sequence import Sequence, Status
from shared.messages.control import WorkerHeartbeat

LEAST_CHUNK = 64  # tokens: in smaller ones a step costs more than what it computes


class PlannedStep:
    """A plan whose frame is not folded yet.

    sequences: those it computes. positions: output position that each samples, -1 for none. stops: tokens computed
    of each once the step is done. solo: the plan holds one suspect and nothing else (rule 20).
    """

    __slots__ = ("positions", "sequences", "solo", "step", "stops")

    def __init__(
        self, step: int, sequences: list[Sequence], positions: "array[int]", stops: "array[int]", solo: bool
    ) -> None:
        self.step = step
        self.sequences = sequences
        self.positions = positions
        self.stops = stops
        self.solo = solo


class WorkerState:
    """Limits, blocks, sequences and outstanding plans of a worker.

    running: bound sequences, in scheduling order. settling: those that left running with rows still in flight here.
    outstanding: plans not folded, oldest first. forget: sequences whose state the worker shall drop with the next plan.
    num_uncomputed_tokens: sum over running, kept up to date; the worker's backlog.
    accepting: False while it drains. suspect: the one bound sequence that must run alone, solo_turn: whether it is
    its turn, rather than that of all others.
    """

    def __init__(
        self,
        heartbeat: WorkerHeartbeat,
        epoch: int,
        cached: Iterable[tuple[int, bytes]],
        max_num_outstanding: int,
        prefill_share: float,
    ) -> None:
        self.max_num_outstanding = max_num_outstanding
        self.name = heartbeat.worker
        self.epoch = epoch
        self.capacity = Capacity.of(heartbeat)
        self.model = self.capacity.model
        self.block_size = heartbeat.block_size
        self.max_num_batched_tokens = heartbeat.max_num_batched_tokens
        self._prefill_share = prefill_share
        # each running sequence must get a token in each step, or streams would stand still in turns
        self.max_num_seqs = min(heartbeat.max_num_seqs, heartbeat.max_num_batched_tokens)
        self.accepting = not heartbeat.leaving
        self.blocks = BlockManager(heartbeat.num_blocks, enable_prefix_caching=heartbeat.enable_prefix_caching)
        self.blocks.load(cached)
        self.swap = HostTier(heartbeat.num_swap_slots)
        self.swap.learn_costs(heartbeat)
        self.running: Order[Sequence] = Order()
        self.settling: dict[int, Sequence] = {}
        self.outstanding: deque[PlannedStep] = deque()
        self.forget: array[int] = array("Q")
        self.next_step = 1
        self.num_uncomputed_tokens = 0
        self.suspect: Sequence | None = None
        self.solo_turn = True

    @property
    def num_free_seats(self) -> int:
        """Sequences that could be bound beside those running."""
        return self.max_num_seqs - len(self.running)

    def num_prompt_tokens_beside_streams(self, num_waiting: int) -> int:
        """Prompt tokens for a step that also continues streams; num_waiting: those that are to be computed.

        A quarter of them, for prompts cost less beside streams than by themselves: the step reads the weights anyway.
        So a lone prompt is spread over some steps, and streams hardly feel it. Within bounds: prefill_share of a step,
        which many prompts at once get, and a quarter of that or LEAST_CHUNK tokens.
        """
        most = self._prefill_share * self.max_num_batched_tokens
        return max(1, int(min(most, max(LEAST_CHUNK, most / 4, num_waiting / 4))))

    @property
    def may_be_planned(self) -> bool:
        """Whether fewer plans than allowed are outstanding."""
        return len(self.outstanding) < self.max_num_outstanding

    @property
    def has_room_in_step(self) -> bool:
        """Whether its next step can be planned now, with tokens and a seat left for one more sequence."""
        return (
            self.may_be_planned and self.num_uncomputed_tokens < self.max_num_batched_tokens and self.num_free_seats > 0
        )

    def bind(self, sequence: Sequence, num_hits: int, num_swapped: int, table: list[int]) -> None:
        """A waiting sequence runs here from now on, with this block table: the device holds the contents of its first
        blocks already, those of the next ones come in from the swap space."""
        sequence.status = Status.RUNNING
        sequence.last_worker = self.name
        sequence.max_num_tokens = self.capacity.max_num_tokens(sequence)
        sequence.block_table = table
        sequence.num_slots = len(table) * self.block_size
        if num_swapped:
            names = sequence.block_hashes[num_hits : num_hits + num_swapped]
            blocks = table[num_hits : num_hits + num_swapped]
            self.swap.fetch(names, blocks)
            for block, name in zip(blocks, names, strict=True):
                self.blocks.register(block, name)
            num_hits += num_swapped
        sequence.num_computed_tokens = num_hits * self.block_size
        sequence.num_named_blocks = num_hits
        sequence.next_name_at = (num_hits + 1) * self.block_size
        self.running.add(sequence)
        self.num_uncomputed_tokens += sequence.num_uncomputed_tokens
        if sequence.suspect:
            self.suspect = sequence

    def keep_in_swap_space(self, sequence: Sequence) -> int:
        """Of a running sequence that is about to leave: its named blocks; how many are sent there."""
        named = slice(sequence.num_named_blocks)
        return self.swap.keep(sequence.block_table[named], sequence.block_hashes[named])

    def release(self, sequence: Sequence) -> None:
        """The running sequence leaves: its blocks are free for later plans, the worker will drop its state."""
        self.running.remove(sequence)
        self.num_uncomputed_tokens -= sequence.num_uncomputed_tokens
        self.blocks.free(sequence.block_table)
        if sequence.loaded:
            self.forget.append(sequence.id)
        sequence.drop_blocks()
        if self.suspect is sequence:
            self.suspect = None

    def clear(self, sequence: Sequence) -> None:
        """A row of the suspect is folded: it runs with the others again."""
        sequence.suspect = False
        if self.suspect is sequence:
            self.suspect = None

    def extend(self, sequence: Sequence) -> bool:
        """Give a running sequence one more block, if there is one."""
        if not self.blocks.extend(sequence.block_table, 1):
            return False
        sequence.num_slots += self.block_size
        return True

    def name_blocks(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Name the blocks that are full of tokens computed by folded steps and folded themselves (rule 9)."""
        if self.blocks.enable_prefix_caching:
            num_tokens = min(num_computed_tokens, sequence.num_folded_tokens)
            hashes = sequence.hash_blocks(self.block_size, num_tokens)
            for index in range(sequence.num_named_blocks, num_tokens // self.block_size):
                self.blocks.register(sequence.block_table[index], hashes[index])
            sequence.num_named_blocks = max(sequence.num_named_blocks, num_tokens // self.block_size)
        sequence.next_name_at = (num_computed_tokens // self.block_size + 1) * self.block_size

    def check_integrity(self) -> list[str]:
        """Everything that is wrong with blocks and counters here; empty when all is well."""
        problems = self.blocks.check_integrity(sequence.block_table for sequence in self.running)
        problems += self.swap.check_integrity()
        num_uncomputed_tokens = sum(sequence.num_uncomputed_tokens for sequence in self.running)
        if num_uncomputed_tokens != self.num_uncomputed_tokens:
            problems.append(f"{num_uncomputed_tokens} tokens are to be computed, counted {self.num_uncomputed_tokens}")
        if len(self.running) > self.max_num_seqs:
            problems.append(f"{len(self.running)} sequences run, {self.max_num_seqs} may")
        for sequence in self.running:
            if sequence.status is not Status.RUNNING:
                problems.append(f"sequence {sequence.id} runs with status {sequence.status.name}")
            if sequence.num_computed_tokens > sequence.num_slots:
                problems.append(f"sequence {sequence.id} has {sequence.num_slots} slots for {sequence.num_tokens}")
        for sequence in [*self.running, *self.settling.values()]:
            in_flight = sum(1 for step in self.outstanding if sequence in step.sequences)
            if in_flight != sequence.num_steps_in_flight:
                problems.append(f"sequence {sequence.id} is in {in_flight} plans, not {sequence.num_steps_in_flight}")
        for sequence in self.settling.values():
            if sequence.status is not Status.SETTLING or not sequence.num_steps_in_flight:
                problems.append(f"sequence {sequence.id} settles with status {sequence.status.name}")
        return [f"{self.name}: {problem}" for problem in problems]
