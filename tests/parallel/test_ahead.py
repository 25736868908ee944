"""Steps of a group that are launched ahead: the other ranks go on with tokens that rank 0 has not told the host yet."""

import io
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from services.worker.engine.interface import Launched, StepInput, StepOutput, Swaps
from services.worker.engine.isolation import EngineBroken
from services.worker.parallel.group_engine import PipelinedGroupEngine
from services.worker.parallel.orders import Order, Step, orders_from, to_bytes
from shared.repository.stored_model import StoredModel
from tests.engine.ahead import run_ahead
from tests.engine.conftest import store_tiny_model
from tests.engine.test_cuda_forward import BLOCK_SIZE, MAX_MODEL_LEN, NARROW, NUM_BLOCKS, PROMPTS
from tests.parallel.test_cuda_ranks import MODELS, SIZE, forward_of
from tests.parallel.threads import Meeting, ThreadRank
from tests.waiting import LIMIT_S
from tests.worker.engines import PipelinedMemoryEngine

NUM_OUTPUTS = [6, 2, 5, 6]


class RankZero:
    """Its engine, one step after the other."""

    model, model_version, device, kernels = "tiny", "1", "emulated", "cuda"
    num_swap_slots = 0
    num_blocks, block_size, max_model_len = NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN

    def __init__(self, stored: StoredModel, rank: ThreadRank, orders: "SimpleQueue[bytes | None]") -> None:
        self.vocab_size = stored.config.vocab_size
        self.forward = forward_of(stored, rank)
        self.orders = orders

    def warm_up(self) -> None:
        raise NotImplementedError

    def step(self, batch: StepInput) -> StepOutput:
        self.orders.put(to_bytes(Step.of(batch)))
        return self.forward.run(batch)

    def swap(self, swaps: Swaps) -> None:
        raise NotImplementedError


class RankZeroAhead(RankZero):
    def launch(self, batch: StepInput) -> Launched:
        self.orders.put(to_bytes(Step.of(batch)))
        return self.forward.launch(batch)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MODELS["llama"]
    return store_tiny_model(tmp_path_factory.mktemp("cuda"), architecture, torch.bfloat16, **(NARROW | overrides))


def outputs_of(stored: StoredModel, kind: type[RankZero]) -> tuple[object, int]:
    orders: SimpleQueue[bytes | None] = SimpleQueue()

    def work(rank: ThreadRank) -> tuple[object, int] | None:
        if rank.rank == 0:
            found = run_ahead(kind(stored, rank, orders), PROMPTS, NUM_OUTPUTS, chunk=12)
            orders.put(None)
            return found
        forward = forward_of(stored, rank)
        while (data := orders.get(timeout=LIMIT_S)) is not None:
            (order,) = orders_from(io.BytesIO(data))
            assert isinstance(order, Step)
            forward.compute_logits(order.batch())
        return None

    found, _ = Meeting(SIZE).run(work)
    assert found is not None
    return found


def test_tokens_are_those_of_one_step_after_the_other(llama: StoredModel) -> None:
    expected, num_ahead = outputs_of(llama, RankZero)
    assert num_ahead == 0
    outputs, num_ahead = outputs_of(llama, RankZeroAhead)
    assert num_ahead > 5
    assert outputs == expected


class RecordedRanks:
    """See Ranks. Nobody is there."""

    def __init__(self) -> None:
        self.pids = {1: 0}
        self.orders: list[Order] = []
        self.num_deaths_awaited = 0

    def tell(self, order: Order) -> None:
        self.orders.append(order)

    def wait_for_death(self) -> None:
        self.num_deaths_awaited += 1


def test_a_group_tells_its_ranks_what_is_launched_before_it_is_computed() -> None:
    engine, ranks = PipelinedMemoryEngine(), RecordedRanks()
    group = PipelinedGroupEngine(engine, ranks, lambda: None)  # type: ignore[arg-type]
    outputs, num_ahead = run_ahead(group, [[1, 2], [3, 4, 5]], [4, 4], chunk=8)
    alone, _ = run_ahead(PipelinedMemoryEngine(), [[1, 2], [3, 4, 5]], [4, 4], chunk=8)
    assert outputs == alone
    assert num_ahead == len(ranks.orders) - 1 == engine.num_launched - 1
    steps = [order.batch() for order in ranks.orders if isinstance(order, Step)]
    assert [step.carried is None for step in steps] == [True, *[False] * num_ahead]
    assert all(np.array_equal(step.carried, [0, 1]) for step in steps[1:])


@pytest.mark.parametrize("error", [RuntimeError("a kernel failed"), EngineBroken("the ranks do not reach each other")])
def test_whatever_goes_wrong_in_a_launched_step_ends_the_group(error: Exception) -> None:
    """A rank that is not where the others are cannot be told to try again."""
    engine, ranks = PipelinedMemoryEngine(), RecordedRanks()

    def fail(batch: StepInput) -> StepOutput:
        raise error

    engine.step = fail  # type: ignore[method-assign]
    group = PipelinedGroupEngine(engine, ranks, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(EngineBroken, match=str(error)):
        run_ahead(group, [[1, 2]], [4], chunk=8)
    assert (ranks.num_deaths_awaited > 0) == isinstance(error, EngineBroken)
