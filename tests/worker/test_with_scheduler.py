"""The worker's core under the real scheduler's plans and the real fold: prefix hits, preemption, moves, new epochs."""

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bench.shard_messages import ready_worker
from services.scheduler.core.scheduler import Scheduler
from services.worker.core.plan_executor import PlanExecutor
from services.worker.core.plan_queue import PlanQueue
from shared.block_hash import HASH_BYTES
from shared.log.fold import Fold
from shared.log.state import SequenceState
from shared.messages.codec import encode
from shared.messages.control import WorkerHeartbeat
from shared.messages.packed import INT32, pack, unpack_tokens
from shared.messages.pipeline import EpochStart, Fence, Request, Rows
from shared.messages.plan_parts import split_plan
from shared.messages.sampling import Sampling
from tests.worker.engines import BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE, MemoryEngine, Pipeline, continuation
from tests.worker.plans import rows_of

NUM_BLOCKS = 20
EOS = tuple(range(0, VOCAB_SIZE, 125))


class Node:
    """A worker without its bus."""

    def __init__(self, name: str, num_swap_slots: int) -> None:
        self.name = name
        self.executor = PlanExecutor(name, NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE, num_swap_slots)
        self.engine = MemoryEngine(num_swap_slots)
        self.pipeline = Pipeline(self.executor, self.engine)
        self.queue = PlanQueue()
        self.frames: deque[Rows] = deque()

    def heartbeat(self) -> WorkerHeartbeat:
        return structs.replace(
            ready_worker(
                self.name,
                num_blocks=NUM_BLOCKS,
                block_size=BLOCK_SIZE,
                max_num_seqs=6,
                max_num_batched_tokens=12,
                max_model_len=64,
            ),
            epoch=self.queue.epoch,
            next_plan=self.queue.next_plan,
            num_swap_slots=self.engine.num_swap_slots,
        )

    def begin(self) -> None:
        """The next plan, behind a step that still runs if there is one."""
        plan = self.queue.take()
        if plan is not None:
            self.frames += self.pipeline.begin(plan)

    def finish(self) -> None:
        """The step that runs."""
        if len(self.pipeline):
            self.frames.append(self.pipeline.finish())

    def drop(self) -> None:
        """The epoch is over."""
        self.frames.clear()
        self.pipeline.drop()

    def compute(self) -> None:
        """A whole step."""
        self.begin()
        self.finish()


class Shard:
    """Scheduler, fold and two workers; every record and every plan goes through its wire form."""

    def __init__(self, num_swap_slots: int = 0, make_node: Callable[[str, int], Node] = Node) -> None:
        self.fold = Fold()
        self.scheduler = Scheduler()
        self.nodes = [make_node("a", num_swap_slots), make_node("b", num_swap_slots)]
        self.num_errors = 0
        self.append("fence", Fence(kind="takeover", leader="test"))
        for node in self.nodes:
            self.open_epoch(node)

    def append(self, kind: str, record: Fence | Request | Rows) -> list[SequenceState]:
        return self.fold.apply(kind, encode(record), self.fold.seq + 1, 0).sequences

    def open_epoch(self, node: Node) -> None:
        epoch = self.fold.epoch_of(node.name)
        assert node.queue.on_epoch_start(EpochStart(epoch=epoch)) == "opened"
        node.drop()
        blocks, hashes = node.executor.open_epoch()
        names = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        self.scheduler.add_worker(node.heartbeat(), epoch, zip(unpack_tokens(blocks), names, strict=True))

    def ask(self, number: int, prompt: list[int], max_tokens: int) -> None:
        request = Request(
            request_id=f"{number:032x}",
            model="m",
            model_version="1",
            prompt_token_ids=pack(INT32, prompt),
            sampling=Sampling(max_tokens=max_tokens, eos_token_ids=EOS),
            deadline_ns=2**62,
        )
        for sequence in self.append("req", request):
            assert self.scheduler.add(sequence) is None

    def plan(self, node: Node) -> None:
        while (plan := self.scheduler.schedule(node.name)) is not None:
            for part in split_plan(plan, 500):
                assert node.queue.on_plan(part) == "taken"

    def store(self, node: Node) -> None:
        if not node.frames:
            return
        frame = node.frames.popleft()
        self.num_errors += len(frame.errors)
        ended = [sequence for sequence in self.append("out", frame) if sequence.end is not None]
        self.scheduler.update(node.name, frame.step)
        for sequence in ended:
            self.scheduler.end(sequence.id)
        assert len(rows_of(frame)) <= 6

    def fence(self, node: Node) -> None:
        self.append("fence", Fence(kind="worker", leader="test", worker=node.name))
        self.scheduler.remove_worker(node.name)
        self.open_epoch(node)

    @property
    def live(self) -> list[SequenceState]:
        return [sequence for sequence in self.fold.sequences.values() if sequence.end is None]


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = continuation(prompt, max_tokens)
    end = next((at for at, token in enumerate(tokens, 1) if token in EOS), max_tokens)
    return tokens[:end]


prompts = st.tuples(st.integers(1, 30), st.integers(0, 2)).map(
    lambda pair: [pair[1]] * 4 + list(range(40, 40 + pair[0]))
)
actions = ["plan", "begin", "finish", "store", "plan", "begin", "finish", "store", "fence"]
events = st.lists(st.tuples(st.sampled_from(actions), st.integers(0, 1)), max_size=160)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(prompts, st.integers(1, 25)), min_size=1, max_size=10),
    events,
    st.sampled_from([0, 3, 40]),
    st.booleans(),
)
def test_every_sequence_is_what_a_plain_run_gives(
    wishes: list[tuple[list[int], int]], script: list[tuple[str, int]], num_swap_slots: int, goes_ahead: bool
) -> None:
    shard = Shard(num_swap_slots)
    for number, (prompt, max_tokens) in enumerate(wishes):
        shard.ask(number, prompt, max_tokens)
    does = {"plan": shard.plan, "begin": Node.begin, "finish": Node.finish, "store": shard.store, "fence": shard.fence}
    for action, index in script:
        does[action](shard.nodes[index])
    for turn in range(1000):
        if not shard.live:
            break
        for node in shard.nodes:
            shard.plan(node)
            node.begin()
            if not (goes_ahead and turn % 7 and len(node.pipeline) == 1 and node.queue.num_queued):
                node.finish()
            shard.store(node)
            assert not any(worker.check_integrity() for worker in shard.scheduler.workers.values())
    assert shard.live == []
    for sequence, (prompt, max_tokens) in zip(shard.fold.sequences.values(), wishes, strict=True):
        assert list(sequence.tokens) == expected(prompt, max_tokens)
    counts = shard.fold.counts
    assert shard.num_errors == counts["prefix_mismatched"] == counts["row_foreign"] == counts["row_missing"] == 0


def test_most_steps_are_begun_ahead_though_sequences_come_and_go() -> None:
    shard = Shard()
    shard.scheduler.remove_worker("b")
    (node, _), num_asked = shard.nodes, 0
    for _ in range(300):
        if len(shard.live) < 5:
            shard.ask(num_asked, [num_asked % 50] * 4 + list(range(40, 45)), 5 + num_asked % 9)
            num_asked += 1
        shard.plan(node)
        node.begin()
        if len(node.pipeline) > 1 or not node.queue.num_queued:
            node.finish()
        while node.frames:
            shard.store(node)
    assert num_asked > 50
    assert node.pipeline.num_ahead > 200
    assert shard.num_errors == shard.fold.counts["prefix_mismatched"] == 0


def run_to_the_end(shard: Shard) -> None:
    for _ in range(2000):
        if not shard.live:
            return
        for node in shard.nodes[:1]:
            shard.plan(node)
            node.compute()
            shard.store(node)
    raise AssertionError("it does not end")


def test_preempted_sequences_come_back_from_the_swap_space() -> None:
    """Instead of being computed again."""
    num_computed = []
    for num_swap_slots in (0, 40):
        shard = Shard(num_swap_slots)
        shard.scheduler.remove_worker("b")
        wishes = [[number] * 4 + list(range(600, 610)) for number in range(6)]
        for number, prompt in enumerate(wishes):
            shard.ask(number, prompt, 40)
        run_to_the_end(shard)
        node, scheduler = shard.nodes[0], shard.scheduler
        assert scheduler.num_preemptions > 0, "the test shows nothing"
        assert (scheduler.num_swapped_blocks > 0) == (node.engine.num_swapped_in > 0) == (num_swap_slots > 0)
        for sequence, prompt in zip(shard.fold.sequences.values(), wishes, strict=True):
            assert list(sequence.tokens) == expected(prompt, 40)
        assert shard.num_errors == shard.fold.counts["prefix_mismatched"] == 0
        num_computed.append(sum(len(batch.token_ids) for batch in node.engine.batches))
    assert num_computed[1] <= num_computed[0] - BLOCK_SIZE * node.engine.num_swapped_in // 2


@pytest.mark.parametrize(("swap_us", "compute_us", "is_worthwhile"), [(0, 5, True), (4, 5, True), (6, 5, False)])
def test_what_is_faster_to_compute_is_not_swapped(swap_us: float, compute_us: float, is_worthwhile: bool) -> None:
    shard = Shard(40)
    shard.scheduler.remove_worker("b")
    heartbeat = structs.replace(shard.nodes[0].heartbeat(), swap_us=swap_us, compute_us=compute_us)
    shard.scheduler.learn_costs(heartbeat)
    for number in range(6):
        shard.ask(number, [number] * 14, 40)
    run_to_the_end(shard)
    assert shard.scheduler.num_preemptions > 0, "the test shows nothing"
    assert (shard.scheduler.num_swapped_blocks > 0) == is_worthwhile
