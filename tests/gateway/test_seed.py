"""--seed: a run can be repeated."""

from tests.gateway.conftest import start_gateway, stop_gateway
from tests.gateway.stand_in import StandIn
from tests.servers import NatsServer


async def seeds_of_a_run(server: NatsServer, stand_in: StandIn, seed: int | None) -> list[int | None]:
    stand_in.requests.clear()
    running = await start_gateway(server.url, stand_in, seed=seed)
    for _ in range(3):
        await running.complete()
    await stop_gateway(running)
    return [request.seed_default for request in stand_in.requests]


async def test_the_same_seed_draws_the_same_seeds_in_order(nats_server: NatsServer, stand_in: StandIn) -> None:
    first = await seeds_of_a_run(nats_server, stand_in, 7)
    assert len(set(first)) == 3
    assert await seeds_of_a_run(nats_server, stand_in, 7) == first
    assert await seeds_of_a_run(nats_server, stand_in, 8) != first
    assert await seeds_of_a_run(nats_server, stand_in, None) != await seeds_of_a_run(nats_server, stand_in, None)
