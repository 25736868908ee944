"""What a group of ranks computes: the tokens of one rank, for every family, over gloo; and what ends it."""

import os
import queue
import random
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import NoReturn

import numpy as np
import psutil
import pytest

from services.worker.config import WorkerConfig
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import Swaps
from services.worker.engine.isolation import EngineBroken
from services.worker.engine.options import EngineError
from services.worker.loading import load_part
from services.worker.parallel import ranks
from services.worker.parallel.communicator import TorchCommunicator
from services.worker.parallel.group import check
from shared.messages.sampling import Sampling
from shared.repository.stored_model import StoredModel
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.parallel.groups import KV_CACHE_BYTES, running_group
from tests.waiting import until_now

NUM_TOKENS = 8
LATE_S = 0.5

# The vocabulary is of 384 tokens; there are 4 query heads and 2 key/value heads unless said.
MODELS: dict[str, tuple[int, str, dict[str, object]]] = {
    "llama, every bias": (2, "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral, window, four ranks for two key heads": (4, "MistralForCausalLM", {"sliding_window": 20}),
    "qwen2, tied, biases, one key head": (2, "Qwen2ForCausalLM", {"num_key_value_heads": 1}),
    "qwen3, normalised heads, a vocabulary that does not divide": (
        4,
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 4, "vocab_size": 389},
    ),
}


def prompts_for(vocab_size: int) -> list[list[int]]:
    rng = random.Random(17)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in (1, 2, 16, 17, 40, 70)]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_one_rank(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    size, architecture, overrides = MODELS[name]
    stored = store_tiny_model(tmp_path_factory.mktemp("family"), architecture, **overrides)
    alone = CpuEngine.load(stored, Options(kv_cache_memory_bytes=KV_CACHE_BYTES))
    prompts = prompts_for(stored.config.vocab_size)
    drawn = Sampling(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.9, seed=3, logprobs=2)
    with running_group(stored, size) as group:
        group.warm_up()
        for sampling in (greedy(NUM_TOKENS), drawn):
            expected = generate(alone, prompts, sampling)
            assert generate(group, prompts, sampling) == expected
            assert generate(group, prompts, sampling, chunk=13) == expected


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return store_tiny_model(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM")


def test_a_sequence_fails_alone_and_a_dead_rank_ends_the_group(llama: StoredModel) -> None:
    """And its end is told before the step that it broke ends: the worker's last word is the reason."""
    deaths: queue.Queue[tuple[int, int]] = queue.Queue()

    def tell_late(rank: int, status: int) -> None:
        time.sleep(LATE_S)  # any broken connection is noticed earlier
        deaths.put((rank, status))

    with running_group(llama, 2, tell_late) as group:
        driver = Driver(group)
        failing = driver.add([5, 384, 7], greedy(2))
        good = driver.add([5, 6, 7], greedy(2))
        driver.step()
        assert failing.error and not good.error
        driver.step()
        assert len(good.outputs) == 2
        os.kill(group.ranks.pids[1], signal.SIGKILL)
        driver.add([5, 6, 7], greedy(2))
        with pytest.raises(EngineBroken):
            driver.step()
        assert deaths.get_nowait() == (1, -signal.SIGKILL)


@pytest.mark.parametrize("number", ranks.IGNORED_SIGNALS, ids=str)
def test_what_asks_all_processes_to_end_is_for_rank_0_from_the_first_moment_on(
    llama: StoredModel, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, deaf = ranks._start_rank, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def start_and_signal() -> "subprocess.Popen[bytes]":
        process = start()
        process.send_signal(number)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == deaf, "rank 0 still hears it"
        return process

    monkeypatch.setattr(ranks, "_start_rank", start_and_signal)
    with running_group(llama, 2) as group:
        group.warm_up()


@pytest.mark.parametrize("task", ["warm-up", "step", "swap"])
def test_a_rank_that_has_ended_is_told_whatever_is_asked_of_the_group_then(llama: StoredModel, task: str) -> None:
    deaths: queue.Queue[tuple[int, int]] = queue.Queue()

    def tell_late(rank: int, status: int) -> None:
        time.sleep(LATE_S)
        deaths.put((rank, status))

    nothing = np.zeros((0, 2), dtype=np.int32)
    with running_group(llama, 2, tell_late) as group:
        driver = Driver(group)
        driver.add([5, 6, 7], greedy(2))
        tasks = {"warm-up": group.warm_up, "step": driver.step, "swap": lambda: group.swap(Swaps(nothing, nothing))}
        rank = psutil.Process(group.ranks.pids[1])
        rank.kill()
        until_now(lambda: not rank.is_running(), "the end of the rank")
        with pytest.raises(EngineBroken):
            tasks[task]()
        assert deaths.get_nowait() == (1, -signal.SIGKILL)


def ranks_alive() -> list[psutil.Process]:
    """Of this process."""
    children = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return [child for child in children if "services.worker.rank" in child.cmdline()]


@pytest.mark.parametrize("starts", [True, False])
def test_nobody_parts_from_ranks_that_still_wait_for_him(
    llama: StoredModel, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection would be their last word, instead of what keeps rank 0 from starting."""
    left: list[psutil.Process] = []
    part = TorchCommunicator.close

    def look_and_part(communicator: TorchCommunicator) -> None:
        left.extend(ranks_alive())
        part(communicator)

    def refuse(*_: object) -> NoReturn:
        raise EngineError("too little memory")

    monkeypatch.setattr(TorchCommunicator, "close", look_and_part)
    with ExitStack() as stack:
        if not starts:
            stack.enter_context(pytest.raises(EngineError, match="too little memory"))
        stack.enter_context(running_group(llama, 2, load_rank_0=load_part if starts else refuse))
        assert ranks_alive()
    assert left == []


def test_all_blocks_of_a_failed_sequence_are_told(llama: StoredModel) -> None:
    """Rank 0 cannot see what other ranks hold in them."""
    with running_group(llama, 2) as group:
        driver = Driver(group)
        driver.add([5] * 20 + [384], greedy(2))
        driver.add([5, 6, 7], greedy(2))
        batch, _ = driver._build(driver._schedule())
        assert group.step(batch).spoiled_blocks == [0, 1]


def test_ranks_end_with_the_group_and_what_goes_wrong_in_a_step_ends_it(llama: StoredModel) -> None:
    """Rank 0 has left the step, and the other one waits for it: no step can follow."""
    with running_group(llama, 2) as group:
        (pid,) = group.ranks.pids.values()
        driver = Driver(group)
        driver.add([5, 6, 7], greedy(2))
        batch, _ = driver._build(driver._schedule())

        def fail(_: object) -> None:
            raise MemoryError("none left")

        group._engine.step = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineBroken, match="none left"):
            group.step(batch)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("engine", "size", "num_devices", "words"),
    [
        ("cuda", 2, 1, ("tensor_parallel_size 2", "CUDA devices; there are 1")),
        ("cuda", 3, 8, ("tensor_parallel_size 3", "4 attention heads")),
        ("cpu", 3, 0, ("tensor_parallel_size 3", "4 attention heads")),
    ],
)
def test_groups_that_cannot_be_are_refused(
    llama: StoredModel, engine: str, size: int, num_devices: int, words: tuple[str, ...]
) -> None:
    config = WorkerConfig(engine=engine, tensor_parallel_size=size)  # type: ignore[arg-type]
    with pytest.raises(EngineError) as refusal:
        check(llama.config, config, num_devices)
    assert all(word in str(refusal.value) for word in words)


def test_sizes_that_can_be_are_not_refused(llama: StoredModel) -> None:
    for size in (1, 2, 4):
        check(llama.config, WorkerConfig(engine="cuda", tensor_parallel_size=size), 4)
