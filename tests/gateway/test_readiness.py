"""Readiness of a gateway before a scripted pipeline: canaries where nobody else asks; busy is not unhealthy."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from services.gateway.core.canary import ID_PREFIX
from shared.errors import unavailable
from tests.gateway.conftest import Running, start_gateway, stop_gateway
from tests.gateway.stand_in import Script, StandIn
from tests.servers import NatsServer
from tests.waiting import until


@pytest.fixture
async def watching(nats_server: NatsServer, stand_in: StandIn) -> AsyncIterator[Running]:
    """A gateway whose canaries come twice a second."""
    stand_in.script = Script(num_tokens=1)
    running = await start_gateway(nats_server.url, stand_in, canary_interval_s=0.5)
    yield running
    await stop_gateway(running)


async def test_the_first_readiness_needs_a_canary(nats_server: NatsServer, stand_in: StandIn) -> None:
    stand_in.script = Script(num_tokens=1, holds_at=0)
    starting = asyncio.create_task(start_gateway(nats_server.url, stand_in, canary_interval_s=0.5))
    await until(lambda: stand_in.requests and stand_in.attaches, "a canary")
    await asyncio.sleep(0.3)  # long enough for a gateway that does not wait to become ready
    assert not starting.done()
    stand_in.release()
    running = await starting
    assert len(stand_in.requests) == 1
    await stop_gateway(running)


async def test_idle_gateways_go_on_asking_and_count_none_of_it(watching: Running) -> None:
    await until(lambda: len(watching.stand_in.requests) >= 3, "three canaries")
    assert all((request.request_id or "").startswith(ID_PREFIX) for request in watching.stand_in.requests)
    assert all(request.owner == watching.host.name for request in watching.stand_in.requests)
    assert watching.value("tokenbus_canaries_total") >= 3
    assert watching.value("tokenbus_canaries_failed_total") == 0
    for name in ("request_success_total", "generation_tokens_total", "prompt_tokens_total"):
        text = (await watching.http.get("/metrics")).text
        assert not [line for line in text.splitlines() if line.startswith(f"vllm:{name}") and not line.endswith(" 0.0")]
    hub = watching.gateway.pipeline.hub
    await until(lambda: hub.attachments.num_streams == 0, "no stream left over")
    state = (await watching.http.get("/health")).json()["canary"]["tiny"]
    assert state["works"] is True and state["error"] == "" and state["age_s"] < 60


async def test_no_canary_under_load(watching: Running) -> None:
    watching.stand_in.script = Script(num_tokens=1)
    await until(lambda: watching.stand_in.requests, "the first canary")
    num_canaries = watching.value("tokenbus_canaries_total")
    last, end = time.monotonic(), time.monotonic() + 1.5  # three intervals
    num_pauses = 0  # on a slow machine: half intervals without text, after which a canary is right
    while last < end:
        assert (await watching.complete()).status_code == 200
        now = time.monotonic()
        num_pauses += int((now - last) / 0.25)
        last = now
    assert watching.value("tokenbus_canaries_total") <= num_canaries + 1 + num_pauses, "one may have been under way"


async def test_an_error_of_a_canary_makes_the_gateway_not_ready_and_an_answer_ready_again(watching: Running) -> None:
    watching.stand_in.script = Script(refusal=unavailable("The log cannot be reached.", code="log_unavailable"))
    await until(lambda: not watching.host.check_health().ready, "not ready")
    answer = await watching.http.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "missing": ["canary"]})
    assert "cannot be reached" in (await watching.http.get("/health")).json()["canary"]["tiny"]["error"]
    watching.stand_in.script = Script(num_tokens=1)
    await until(lambda: watching.host.check_health().ready, "ready again")
    assert (await watching.http.get("/ready")).json() == {"ready": True, "missing": []}


async def test_a_canary_without_an_answer_makes_the_gateway_not_ready(watching: Running) -> None:
    """As when a detokenizer cannot read a model's vocabulary, or the log takes nothing."""
    watching.stand_in.script = Script(num_tokens=1, holds_at=0)
    await until(lambda: not watching.host.check_health().ready, "not ready")
    assert watching.host.check_health().missing == ["canary"]
    num_sent = watching.value("tokenbus_canaries_total")
    await asyncio.sleep(1.0)  # two intervals
    assert watching.value("tokenbus_canaries_total") == num_sent, "one at a time"
    watching.stand_in.release()
    await until(lambda: watching.host.check_health().ready, "ready again")


async def test_a_full_queue_is_not_unhealthy(watching: Running) -> None:
    watching.stand_in.script = Script(refusal=unavailable("The queue is full.", 7, "queue_full"))
    num_sent = watching.value("tokenbus_canaries_total")
    await until(lambda: watching.value("tokenbus_canaries_total") >= num_sent + 3, "three refused canaries")
    assert watching.host.check_health().ready
    assert watching.value("tokenbus_canaries_failed_total") == 0


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_busy_shard_is_told_from_text_that_never_comes(
    comes_back: bool, watching: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames grow and a client waits here. In a long queue the end of the cancelled canary comes back; from a
    detokenizer that cannot read the model's vocabulary nothing does."""
    monkeypatch.setattr("services.gateway.core.shard_progress.MIN_PATIENCE_S", 1.6)
    stand_in = watching.stand_in
    stand_in.frames_per_beat, stand_in.num_running = 1, 1
    stand_in.script = Script(num_tokens=1, holds_at=0)
    client = asyncio.create_task(watching.complete())

    async def answer_cancels() -> None:
        for number in range(3):
            await until(lambda: len(stand_in.ends) > number, "the cancel of a canary")  # noqa: B023
            stand_in.end(stand_in.ends[number], "cancel")

    if comes_back:
        answering = asyncio.create_task(answer_cancels())
        while not answering.done():
            assert watching.host.check_health().missing == []
            await asyncio.sleep(0.02)
        await answering
        assert all(request_id.startswith(ID_PREFIX) for request_id in stand_in.ends)
    else:
        await until(lambda: watching.host.check_health().missing == ["canary"], "not ready")
    stand_in.release()
    assert (await client).status_code == 200
    await until(lambda: watching.host.check_health().ready, "ready")


async def test_frames_that_stand_still_under_load_make_the_gateway_not_ready(watching: Running) -> None:
    stand_in = watching.stand_in
    stand_in.frames_per_beat, stand_in.num_running = 1, 1
    await until(lambda: watching.gateway.pipeline.readiness.shard.advanced_at > 0, "frames")
    stand_in.script = Script(num_tokens=1, holds_at=0)
    stand_in.frames_per_beat = 0
    await until(lambda: "progress" in watching.host.check_health().missing, "not ready")
    stand_in.frames_per_beat = 1
    stand_in.release()
    await until(lambda: watching.host.check_health().ready, "ready again")


async def test_a_gateway_that_stops_cancels_its_canary(nats_server: NatsServer, stand_in: StandIn) -> None:
    stand_in.script = Script(num_tokens=1)
    running = await start_gateway(nats_server.url, stand_in, canary_interval_s=0.3)
    stand_in.script = Script(num_tokens=1, holds_at=0)
    await until(lambda: running.gateway.canary.canaries.num_in_flight, "a canary on its way")
    await until(lambda: len(stand_in.requests) >= 2, "its acceptance")
    await stop_gateway(running)
    await until(lambda: stand_in.ends == [stand_in.requests[-1].request_id], "its end in the log")


@pytest.mark.parametrize("broken", ["shared.bus.nats_log.NatsLog.bounds", "services.gateway.core.canary.Canaries.due"])
async def test_a_gateway_that_cannot_watch_any_more_does_not_live_on(
    watching: Running, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """It would be not ready for good, or ready for good, and nobody would know why."""
    deaths: list[BaseException] = []
    monkeypatch.setattr(watching.host.bus, "fatal", deaths.append)

    def fail(*args: object, **options: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(broken, fail)
    await until(lambda: deaths)
    assert [str(error) for error in deaths] == ["unforeseen"]
