"""A service of the tests: python -m tests.service.sample_service --nats URL --mode MODE."""

import asyncio
from typing import Annotated, Literal

import msgspec

from shared.config import ServiceConfig
from shared.service import EndpointCounts, Health, ServiceHost, StartError, main


class SampleConfig(ServiceConfig, kw_only=True, frozen=True):
    """How serve behaves."""

    mode: Annotated[
        Literal["well", "crash", "stuck", "early", "unable", "waiting", "draining"],
        msgspec.Meta(description="how it behaves"),
    ] = "well"


async def serve(host: ServiceHost, config: SampleConfig) -> None:
    """Serve until told to stop, or misbehave."""
    host.add_stats("echo", "test.echo", lambda: EndpointCounts(num_requests=4, processing_time=100), "test")
    host.health = lambda: Health(True, {"model": "none"})
    if config.mode == "crash":
        raise RuntimeError("boom")
    if config.mode == "unable":
        raise StartError("model of 9 GB does not fit 1 GB")
    if config.mode == "waiting":
        assert await host.unless_stopping(asyncio.sleep(0, 7)) == 7
        assert await host.unless_stopping(asyncio.Event().wait()) is None
        return
    if config.mode == "early":
        return
    await host.stopping.wait()
    if config.mode == "draining":
        await host.hurrying.wait()
    if config.mode == "stuck":
        await asyncio.Event().wait()


if __name__ == "__main__":
    main("sample", SampleConfig, serve)
