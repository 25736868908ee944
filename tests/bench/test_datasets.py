"""Prompts of exact lengths, datasets, fixed workloads, traces and what a gateway's log gives."""

import json
import random
from pathlib import Path

import pytest

from bench import workloads
from bench.core.access_log import trace_of
from bench.datasets.errors import DatasetError
from bench.datasets.sharegpt import sharegpt_requests
from bench.datasets.synthetic import prefix_requests, random_requests
from bench.datasets.timed_trace import read_trace, trace_requests, write_trace
from bench.prompts import PromptError, PromptMaker
from tests.tiny_models import make_tiny_tokenizer


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 17, 128, 513])
def test_prompts_are_as_long_as_asked_in_both_forms(num_tokens: int, prompts: PromptMaker) -> None:
    prompt = prompts.draw(random.Random(num_tokens), num_tokens)
    assert len(prompt.token_ids) == prompt.num_tokens == num_tokens
    assert tuple(make_tiny_tokenizer().encode(prompt.text).ids) == prompt.token_ids


def test_prompts_begin_differently(prompts: PromptMaker) -> None:
    draw = random.Random(1)
    assert len({prompts.draw(draw, 64).token_ids[:16] for _ in range(20)}) == 20


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="--tokenizer"):
        PromptMaker.find("no-such-model")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PromptError, match="is no tokenizer"):
        PromptMaker.find(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "streams", "num", "num_in", "num_out"),
    [("W1", 1, 5, {128}, {128}), ("W2", 16, 64, None, {128}), ("W3", 16, 48, {544}, {64})],
)
def test_fixed_workloads(
    name: str, streams: int, num: int, num_in: set[int] | None, num_out: set[int], prompts: PromptMaker
) -> None:
    plan, again, other = (workloads.make(name, prompts, repeat) for repeat in (0, 0, 1))
    assert plan == again
    assert (plan.max_concurrency, len(plan.requests)) == (streams, num)
    lengths = [request.prompt.num_tokens for request in plan.requests]
    assert [request.prompt.num_tokens for request in other.requests] == lengths
    assert {request.prompt.token_ids[:16] for request in plan.requests}.isdisjoint(
        request.prompt.token_ids[:16] for request in other.requests
    )
    assert set(lengths) == num_in if num_in else min(lengths) >= 32 and max(lengths) <= 512
    assert {request.max_tokens for request in plan.requests} == num_out


def test_the_lengths_of_w2_are_those_of_all_earlier_figures(prompts: PromptMaker) -> None:
    lengths = [request.prompt.num_tokens for request in workloads.make("W2", prompts).requests]
    assert (lengths[:4], sum(lengths)) == ([343, 451, 426, 204], 17175)


def test_w3_shares_its_first_512_tokens(prompts: PromptMaker) -> None:
    requests = workloads.make("W3", prompts).requests
    assert len({request.prompt.token_ids[:512] for request in requests}) == 1
    assert len({request.prompt.token_ids for request in requests}) == 48


def test_w4_offers_its_rate(prompts: PromptMaker) -> None:
    plan = workloads.make_w4(4, 5, prompts)
    assert (plan.max_concurrency, len(plan.requests)) == (None, 20)
    assert plan.requests[-1].due_s == pytest.approx(19 / 4)
    with pytest.raises(ValueError, match="no workload"):
        workloads.make("W9", prompts)


def test_random_lengths_vary_within_their_range(prompts: PromptMaker) -> None:
    requests = random_requests(50, 20, 10, 0.5, 8, prompts, seed=3)
    assert {request.prompt.token_ids[:8] for request in requests} == {requests[0].prompt.token_ids[:8]}
    assert all(18 <= request.prompt.num_tokens <= 38 and 5 <= request.max_tokens <= 15 for request in requests)
    assert len({request.max_tokens for request in requests}) > 5
    assert requests == random_requests(50, 20, 10, 0.5, 8, prompts, seed=3)


def test_prefixes_repeat(prompts: PromptMaker) -> None:
    requests = prefix_requests(12, 16, 8, 3, 5, prompts, seed=3)
    prefixes = [request.prompt.token_ids[:16] for request in requests]
    assert sorted(prefixes.count(each) for each in set(prefixes)) == [4, 4, 4]


def test_sharegpt(tmp_path: Path, prompts: PromptMaker) -> None:
    path = tmp_path / "chats.json"
    turns = [
        ("the way of the world " * 3, "and so on and on " * 2),
        ("a", "too short a question here"),
        ("alone", None),
    ]
    chats = [
        {"id": str(index), "conversations": [{"from": "human", "value": each} for each in pair if each is not None]}
        for index, pair in enumerate(turns)
    ]
    path.write_text(json.dumps(chats))
    requests = sharegpt_requests(path, 3, None, True, prompts, seed=1)
    assert [request.prompt.text for request in requests] == [turns[0][0]] * 3
    assert requests[0].max_tokens == len(make_tiny_tokenizer().encode(str(turns[0][1])).ids)
    assert sharegpt_requests(path, 1, 9, False, prompts, seed=1)[0].max_tokens == 9


@pytest.mark.parametrize(("text", "words"), [("{}", "ShareGPT"), ("[]", "no conversation"), (None, "No such file")])
def test_sharegpt_that_is_none(text: str | None, words: str, tmp_path: Path, prompts: PromptMaker) -> None:
    path = tmp_path / "chats.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DatasetError, match=words):
        sharegpt_requests(path, 3, None, True, prompts, seed=1)


def log_line(seconds: float, **fields: object) -> bytes:
    stamp = f"2026-11-30T12:00:{seconds:09.6f}Z"
    return json.dumps(
        {"event": "request", "path": "/v1/completions", "status": 200, "timestamp": stamp, **fields}
    ).encode()


def test_a_log_becomes_a_trace_and_a_trace_a_plan(tmp_path: Path, prompts: PromptMaker) -> None:
    lines = [
        log_line(9.5, duration_s=2.0, num_prompt_tokens=6, num_output_tokens=4),  # came at 7.5
        log_line(9.0, duration_s=4.0, num_prompt_tokens=12, num_output_tokens=3),  # came at 5.0
        log_line(9.1, duration_s=0.1, num_prompt_tokens=6, num_output_tokens=0, status=503),
        log_line(9.2, duration_s=0.1, path="/metrics"),
        b"no JSON",
        b'{"event": "serving", "url": "x"}',
    ]
    trace, num_left_out = trace_of(lines)
    assert num_left_out == 1
    path = tmp_path / "trace.jsonl"
    write_trace(trace, path)
    requests = trace_requests(read_trace(path), 10, 1.0, prompts, seed=1)
    told = [(request.due_s, request.prompt.num_tokens, request.max_tokens) for request in requests]
    assert told == [(0, 12, 3), (2.5, 6, 4)]
    assert trace_requests(read_trace(path), 10, 2.0, prompts, seed=1)[1].due_s == 1.25


@pytest.mark.parametrize(("text", "words"), [("", "empty"), ('{"timestamp": 1}\n', "no trace"), (None, "No such file")])
def test_traces_that_are_none(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "trace").write_text(text)
    with pytest.raises(DatasetError, match=words):
        read_trace(tmp_path / "trace")
