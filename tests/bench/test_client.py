"""The load client against a server that does all that servers do."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from bench.client.load import run_load
from bench.client.request_bytes import request_body
from bench.client.target import Target, TargetError
from bench.core.outcome import Outcome
from bench.core.plan import Plan, PlannedRequest, Prompt
from bench.measure import measure, measure_in_turn
from bench.processes import ProcessMeter, by_pids
from tests.bench.stand_in import StandInServer, stand_in

NUM_TOKENS = 12


@pytest.fixture
def server() -> Iterator[StandInServer]:
    with stand_in() as running:
        yield running


def plan(num: int = 1, concurrency: int | None = 4, due_s: float = 0.0) -> Plan:
    prompt = Prompt("a b c", (1, 2, 3), 3)
    return Plan("x", [PlannedRequest(prompt, NUM_TOKENS, due_s * index) for index in range(num)], concurrency)


def target(server: StandInServer, model: str = "m", **options: Any) -> Target:
    return Target(base_url=server.url, model=model, **options)


def one(server: StandInServer, model: str, **options: Any) -> Outcome:
    return run_load(target(server, model, **options), plan()).outcomes[0]


@pytest.mark.parametrize("backend", ["tokenbus", "openai-chat"])
def test_a_whole_answer(backend: str, server: StandInServer) -> None:
    outcome = one(server, "m", backend=backend)
    assert outcome.is_ok, outcome.error
    assert (outcome.num_events, outcome.num_usage_tokens, outcome.num_prompt_tokens) == (NUM_TOKENS, NUM_TOKENS, 9)
    assert outcome.status == 200
    assert 0 < outcome.first_s <= outcome.last_s <= outcome.ended_s  # type: ignore[operator]


def test_several_tokens_in_an_event_are_all_counted(server: StandInServer) -> None:
    outcome = one(server, "three")
    assert outcome.is_ok
    assert (outcome.num_output_tokens, outcome.num_events) == (NUM_TOKENS, NUM_TOKENS // 3)
    assert len(outcome.gaps_s) < outcome.num_events


def test_without_usage_the_events_are_counted(server: StandInServer) -> None:
    outcome = one(server, "silent")
    assert outcome.is_ok
    assert (outcome.num_usage_tokens, outcome.num_output_tokens, outcome.num_prompt_tokens) == (None, NUM_TOKENS, 3)


@pytest.mark.parametrize(
    ("model", "error", "code", "status"),
    [
        ("full", "status 503: come back later", "queue_full", 503),
        ("error", "the engine is gone", "gone", 200),
        ("torn", "the connection broke off", "", 200),
        (
            "short",
            f"{NUM_TOKENS // 2} output tokens instead of {NUM_TOKENS}",
            "wrong length, finish_reason length",
            200,
        ),
    ],
)
def test_failures(model: str, error: str, code: str, status: int, server: StandInServer) -> None:
    outcome = one(server, model)
    assert (outcome.error, outcome.code, outcome.status) == (error, code, status)


def test_another_length_is_fine_where_no_exact_one_is_asked(server: StandInServer) -> None:
    assert one(server, "short", exact=False).is_ok


def test_nobody_answers() -> None:
    nowhere = Target(base_url="http://127.0.0.1:1", model="m")
    outcome = run_load(nowhere, plan()).outcomes[0]
    assert not outcome.is_ok
    assert outcome.status == 0


def test_a_load_is_summarized_with_the_cost_of_its_processes(server: StandInServer) -> None:
    meter = ProcessMeter.of_pids([os.getpid()])
    row = measure(target(server), plan(20), meter)
    assert (row.completed, row.failed, row.total_output_tokens) == (20, 0, 20 * NUM_TOKENS)
    assert row.max_concurrency == 4
    assert row.resident_mb["total"] > 10
    row, seconds = measure_in_turn(target(server), [plan(2), plan(3)])
    assert (row.completed, len(seconds)) == (5, 2)


def test_an_open_loop_sends_when_requests_are_due(server: StandInServer) -> None:
    result = run_load(target(server), plan(4, None, due_s=0.05))
    assert result.seconds >= 0.148
    assert [outcome.begun_s for outcome in result.outcomes] == pytest.approx([0, 0.05, 0.1, 0.15], abs=0.002)
    assert all(outcome.late_s >= 0 for outcome in result.outcomes)


@pytest.mark.parametrize(
    ("backend", "options", "fields"),
    [
        ("tokenbus", {}, {"prompt": [1, 2, 3], "ignore_eos": True}),
        ("vllm", {"prompt_format": "text"}, {"prompt": "a b c", "ignore_eos": True}),
        ("llama.cpp", {}, {"prompt": [1, 2, 3], "ignore_eos": True}),
        ("openai", {}, {"prompt": "a b c", "min_tokens": 12}),
        ("openai-chat", {}, {"messages": [{"role": "user", "content": "a b c"}], "min_tokens": 12}),
        ("openai", {"exact": False, "extra_body": {"nvext": {"x": 1}}}, {"prompt": "a b c", "nvext": {"x": 1}}),
    ],
)
def test_what_each_server_is_asked(backend: str, options: dict[str, Any], fields: dict[str, Any]) -> None:
    asked = request_body(Target(base_url="http://h:1", model="m", backend=backend, **options), plan().requests[0])  # type: ignore[arg-type]
    common = {"model": "m", "max_tokens": 12, "stream": True, "temperature": 0.0}
    assert asked == {**common, "stream_options": {"include_usage": True}, **fields}


@pytest.mark.parametrize(
    ("url", "backend", "path"),
    [
        ("http://h:1", "tokenbus", "/v1/completions"),
        ("http://h:1/v1/", "openai-chat", "/v1/chat/completions"),
        ("https://h/proxy", "vllm", "/proxy/v1/completions"),
    ],
)
def test_paths(url: str, backend: str, path: str) -> None:
    assert Target(base_url=url, model="m", backend=backend).path == path  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "127.0.0.1:8000"}, "no URL"),
        ({"base_url": "http://h", "backend": "openai-chat", "prompt_format": "token-ids"}, "chat takes no token ids"),
    ],
)
def test_targets_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TargetError, match=words):
        Target(model="m", **options)


def test_processes_and_their_children_are_found() -> None:
    assert os.getpid() in by_pids([os.getppid()])
    assert by_pids([1 << 30]) == {}
