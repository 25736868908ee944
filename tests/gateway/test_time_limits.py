"""X-Request-Timeout: the client's own deadline (row 50)."""

import asyncio
import time

import pytest

from tests.gateway.conftest import Running
from tests.gateway.stand_in import Script
from tests.waiting import LIMIT_S, until


async def test_it_is_the_deadline_of_the_request(running: Running) -> None:
    headers = {"X-Request-Timeout": "2.5"}
    body = {"model": "tiny", "prompt": ["a", "b"]}
    assert (await running.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
    assert (await running.complete()).status_code == 200
    assert [request.deadline_s for request in running.stand_in.requests] == [2.5, 2.5, 600.0]


@pytest.mark.parametrize("text", ["0", "-1", "601", "soon", "1e1000", "nan", ""])
async def test_what_is_no_time(running: Running, text: str) -> None:
    body = {"model": "tiny", "prompt": "hello"}
    answer = await running.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": text})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Timeout")
    assert running.stand_in.requests == []


@pytest.mark.parametrize("extra", [{}, {"Idempotency-Key": "k"}])
async def test_row_50_it_passes_before_the_first_token_and_after_it(
    running: Running, extra: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when nobody behind the gateway says so."""
    monkeypatch.setattr("services.gateway.generation.DEADLINE_GRACE_S", 0.1)
    headers = {"X-Request-Timeout": "0.2", **extra}
    body = {"model": "tiny", "prompt": "hello", "stream": True}
    running.stand_in.script = Script(holds_at=0)
    # the server's own limit is 600 s, which is longer than this client waits
    answer = await running.http.post("/v1/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    running.stand_in.script = Script(holds_at=2)
    if extra:
        headers |= {"Idempotency-Key": "another"}
    late = await running.http.post("/v1/completions", json=body, headers=headers)
    assert " w1" in late.text and "event: error" in late.text and "deadline_exceeded" in late.text
    if extra:
        await until(lambda: [reads for *_, reads in running.stand_in.readers] == [False, False], "left, not cancelled")
    else:
        await until(lambda: len(running.stand_in.ends) == 2, "cancelled")


async def test_who_joins_with_less_time_is_answered_no_longer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's own deadline is that of whoever sent it, and the grace for the log's word is of no use here: this
    client would give up during it."""
    monkeypatch.setattr("services.gateway.generation.DEADLINE_GRACE_S", 10 * LIMIT_S)
    key = {"Idempotency-Key": "k"}
    body = {"model": "tiny", "prompt": "hello", "stream": True}
    running.stand_in.script = Script(holds_at=0)
    sending = asyncio.create_task(running.http.post("/v1/completions", json=body, headers=key))
    await until(lambda: running.stand_in.readers, "a reader")
    began_s = time.monotonic()
    answer = await running.http.post("/v1/completions", json=body, headers=key | {"X-Request-Timeout": "0.2"})
    assert time.monotonic() - began_s >= 0.2
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert "goes on" in answer.json()["error"]["message"]
    running.stand_in.release()
    assert (await sending).text.endswith("data: [DONE]\n\n")
    assert running.stand_in.ends == []
