"""What a node hears of a service on its health port."""

import pytest

from deploy.node.nats_server import free_port
from deploy.node.processes import HealthProbe
from shared.health import Health, HealthServer


@pytest.mark.parametrize(
    ("details", "leading", "state"),
    [
        ({"state": "loading"}, False, "loading"),
        ({"state": "starting"}, False, ""),
        ({"role": "leader"}, True, ""),
        ({"role": "standby", "state": 5}, False, ""),
    ],
)
async def test_role_and_state_are_read_from_health(details: dict[str, object], leading: bool, state: str) -> None:
    server = HealthServer("127.0.0.1", 0, lambda: Health(False, details))
    await server.start()
    try:
        probe = HealthProbe(server.port)
        assert (await probe.is_ready(), await probe.is_leading(), await probe.state()) == (False, leading, state)
    finally:
        await server.close()


async def test_who_does_not_answer_is_not_ready_and_says_nothing() -> None:
    probe = HealthProbe(free_port())
    assert (await probe.is_ready(), await probe.is_leading(), await probe.state()) == (False, False, "")
