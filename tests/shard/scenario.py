"""What happens in a run: drawn from its seed, or given by a test."""

import random

import msgspec

from shared.messages.packed import pack_tokens
from shared.messages.pipeline import Request
from shared.messages.sampling import Sampling
from tests.shard.clockwork import START_NS
from tests.shard.sim_worker import LETTERS, NOT_A_NUMBER, POISON

ALL_FAULTS = (
    *("kill-scheduler", "kill-worker", "kill-detokenizer", "kill-gateway"),
    *("blink-scheduler", "blink-worker", "blink-worker", "blink-detokenizer", "blink-gateway"),
    *("stop-worker", "stop-scheduler", "stop-detokenizer", "stop-gateway"),
    *("cut-worker", "cut-scheduler", "cut-detokenizer", "cut-gateway", "cut-edge", "cut-edge"),
    *("stall-server", "restart-server"),
    *("lag-scheduler", "lag-detokenizer"),
    *("join-worker", "leave-worker"),
)

COMMON = [LETTERS[number * number % len(LETTERS)] for number in range(20)]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """faults: what may happen, num_faults of them do. loss, duplication: shares of messages. max_records: where the
    log is full; schedulers then trim it. step_s: an engine step's time. poison, not_numbers: shares of requests whose
    prompt kills its worker, or makes no numbers. leaving: share of clients that go. repeats: share of requests that are
    stored a second time, under an id that the log does not remember. shared_prefixes: share of prompts that begin as
    others do. fencing: False is the negative control. limit_s: when to give up."""

    num_requests: int = 20
    asked_within_s: float = 8.0
    faults: tuple[str, ...] = ALL_FAULTS
    num_faults: int = 8
    loss: float = 0.02
    duplication: float = 0.0
    max_records: int | None = None
    step_s: float = 0.01
    poison: float = 0.0
    not_numbers: float = 0.0
    leaving: float = 0.25
    repeats: float = 0.05
    shared_prefixes: float = 0.3
    fencing: bool = True
    limit_s: float = 80.0


def draw_scenario(seed: int) -> Scenario:
    """One of many kinds of runs."""
    draw = random.Random(f"scenario {seed}")
    return Scenario(
        num_faults=draw.choice([0, *range(4, 11)]),
        loss=draw.choice([0.0, 0.02, 0.02, 0.05]),
        duplication=draw.choice([0.0, 0.0, 0.03]),
        max_records=draw.choice([None, None, 60, 100, 400]),
        step_s=draw.choice([0.01, 0.01, 0.03, 0.06]),
        poison=draw.choice([0.0, 0.0, 0.0, 0.04]),
        not_numbers=draw.choice([0.0, 0.0, 0.06]),
    )


def draw_request(number: int, scenario: Scenario, draw: random.Random, now_ns: int) -> Request:
    """A request of random length: some with stop strings, EOS or two choices, some short of time, some that harm."""
    length = draw.choice([1, 5, 20, 60])
    prompt = [draw.choice(LETTERS) for _ in range(length)]
    if draw.random() < scenario.shared_prefixes:
        prompt = COMMON[: draw.choice([4, 9, 20])] + prompt[:20]
    fate = draw.random()
    if fate < scenario.poison:
        prompt.append(POISON)
    elif fate < scenario.poison + scenario.not_numbers:
        prompt.append(NOT_A_NUMBER)
    return Request(
        request_id=f"{number:032x}",
        model="m",
        model_version="1",
        prompt_token_ids=pack_tokens(prompt),
        sampling=Sampling(
            max_tokens=draw.randint(1, 40),
            n=draw.choice([1, 1, 1, 2]),
            stop=("ab",) if draw.random() < 0.3 else (),
            eos_token_ids=(LETTERS[-1],) if draw.random() < 0.3 else (),
        ),
        deadline_ns=now_ns + int((draw.uniform(0.5, 3) if draw.random() < 0.08 else 120.0) * 1e9),
        created_ns=max(now_ns, START_NS),
        keep_s=draw.choice([0.0, 0.0, 2.5, 60.0]),
    )
