"""The faults that tests and chaos runs ask for: each does what its option says, and only that."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tokenizers import Tokenizer

from services.worker.config import WorkerConfig
from services.worker.engine.faults import (
    Faults,
    FaultyEngine,
    HangKind,
    PipelinedFaultyEngine,
    computes,
    hang,
    with_faults,
)
from services.worker.engine.interface import StepInput
from services.worker.loading import load_fake_engine, with_switched_faults
from tests.stored_models import smollm2
from tests.waiting import LIMIT_S
from tests.worker.engines import MemoryEngine
from tests.worker.test_fake_engine import batch_of, make_engine, row

NUM_STEPS = 2000


def batch_with(*prompts: list[int]) -> StepInput:
    """One step over these prompts."""
    batch = batch_of([row(number) for number in range(len(prompts))])
    batch.token_ids = np.array([token for prompt in prompts for token in prompt], dtype=np.int32)
    batch.cu_seqlens_q = np.cumsum([0, *map(len, prompts)]).astype(np.int32)
    return batch


def faulty(**faults: object) -> FaultyEngine:
    return FaultyEngine(make_engine("pure"), Faults(**faults))  # type: ignore[arg-type]


def test_without_faults_it_is_the_engine() -> None:
    engine = faulty()
    assert not Faults().is_any
    assert (engine.vocab_size, engine.device, engine.num_blocks) == (5000, "fake", 100)
    batch = batch_with([1, 2], [3])
    assert engine.step(batch).tokens.tolist() == make_engine("pure").step(batch).tokens.tolist()


def test_a_marker_lies_within_one_sequence() -> None:
    marker = np.array([7, 8, 9], dtype=np.int32)
    assert computes(batch_with([1], [2, 7, 8, 9, 3]), marker)
    assert not computes(batch_with([1, 7, 8], [9, 2]), marker)
    assert not computes(batch_with([7, 8], [9, 7]), marker)
    assert not computes(batch_with([7]), marker)


def test_shares_are_shares() -> None:
    engine = faulty(nan_share=0.25)
    batch = batch_with([1], [2])
    rows = [len(engine.step(batch).errors) for _ in range(NUM_STEPS)]
    assert 0.2 < sum(rows) / (2 * NUM_STEPS) < 0.3
    assert {0, 1, 2} == set(rows), "rows fail one by one"
    engine, num_raised = faulty(oom_share=0.25), 0
    for _ in range(NUM_STEPS):
        try:
            engine.step(batch)
        except MemoryError:
            num_raised += 1
    assert 0.2 < num_raised / NUM_STEPS < 0.3


def test_what_is_launched_fails_when_it_is_waited_for() -> None:
    engine = with_faults(make_engine("pure"), Faults(nan_share=0.5, oom_share=0.5))
    assert isinstance(engine, PipelinedFaultyEngine)
    batch, num_raised, num_spoiled = batch_with([1], [2]), 0, 0
    for _ in range(200):
        launched = engine.launch(batch)
        try:
            launched.wait()
        except MemoryError:
            num_raised += 1
            continue
        num_spoiled += len(launched.output().errors)
    assert 50 < num_raised < 150
    assert 0.3 < num_spoiled / (2 * (200 - num_raised)) < 0.7


def test_an_engine_without_a_queue_has_none_with_faults() -> None:
    assert type(with_faults(MemoryEngine(), Faults(hang_step=1))) is FaultyEngine
    engine = make_engine("pure")
    assert with_faults(engine, Faults()) is engine


@pytest.mark.parametrize("kind", ["sleep", "spin", "gil"])
def test_one_step_hangs_for_its_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batch = faulty(hang_step=2, hang_s=0.2, hang_kind=kind), batch_with([1])
    hangs_s: list[float] = []

    def timed(kind: HangKind, seconds: float) -> None:
        begun_s = time.perf_counter()
        hang(kind, seconds)
        hangs_s.append(time.perf_counter() - begun_s)

    monkeypatch.setattr("services.worker.engine.faults.hang", timed)
    num_hangs = []
    for _ in range(3):
        engine.step(batch)
        num_hangs.append(len(hangs_s))
    assert num_hangs == [0, 1, 1] and hangs_s[0] >= 0.19


def test_only_one_kind_of_hanging_stops_the_other_threads() -> None:
    """Turns of a thread beside the hanging one, told by the time that each of them ended."""
    code = (
        "import sys, threading, time\n"
        "from services.worker.engine.faults import hang\n"
        "turns, over = [], threading.Event()\n"
        "def turn():\n"
        "    while not over.is_set():\n"
        "        turns.append(time.perf_counter()); time.sleep(0.001)\n"
        "thread = threading.Thread(target=turn); thread.start()\n"
        "begun_s = time.perf_counter()\n"
        "hang(sys.argv[1], 0.5)\n"
        "ended_s = time.perf_counter(); over.set(); thread.join()\n"
        "print(sum(begun_s + 0.1 < at < ended_s - 0.1 for at in turns))\n"
    )
    num_turns = {}
    for kind in ("sleep", "spin", "gil"):
        done = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, timeout=LIMIT_S, check=True)
        num_turns[kind] = int(done.stdout)
    assert num_turns["gil"] == 0
    assert num_turns["sleep"] > 0 and num_turns["spin"] > 0


def test_for_ever_is_for_ever() -> None:
    for kind in ("sleep", "spin", "gil"):
        code = f"from services.worker.engine.faults import hang; print('begun', flush=True); hang({kind!r}, 0)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.kill()
    hang("sleep", 0.001)


def test_poison_is_known_by_its_text_and_kills() -> None:
    """At the beginning of a prompt and within it a word has different ids."""
    model = smollm2()
    config = WorkerConfig(engine="fake", test_poison="arsenic trioxide")
    engine = with_switched_faults(load_fake_engine(model, config), model, config)
    assert isinstance(engine, FaultyEngine)
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    for prompt, dies in (
        ("arsenic trioxide", True),
        ("A spoon of arsenic trioxide, please", True),
        ("A spoon of sugar", False),
        ("trioxide of arsenic", False),
    ):
        batch = batch_with([5, 6], tokenizer.encode(prompt, add_special_tokens=False).ids)
        assert any(computes(batch, marker) for marker in engine.faults.poison) == dies, prompt


def test_poison_kills_the_process() -> None:
    code = (
        "from tests.worker.test_faults import *\n"
        "engine = faulty(poison=[np.array([7, 8], dtype=np.int32)])\n"
        "engine.step(batch_with([1, 7], [8]))\n"
        "print('alive', flush=True)\n"
        "engine.step(batch_with([1], [2, 7, 8]))\n"
        "print('immortal', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"alive\n"
