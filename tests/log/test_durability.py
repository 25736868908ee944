"""Rule 18: an acknowledgement means stored; what that survives is the operator's choice, and documented."""

import asyncio
from pathlib import Path

from deploy.node.nats_server import write_config
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.fold import Fold
from shared.messages.codec import encode
from tests.log.records import request
from tests.servers import NatsServer


async def test_rule_18_what_was_acknowledged_survives_kill_9_of_the_server(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url, "test-1")
    log = await NatsLog.open(bus, "s0")
    for number in range(10):
        await log.append("req", encode(request(f"{number:032x}")), f"req-{number}")
    await asyncio.to_thread(nats_server.kill)
    await asyncio.to_thread(nats_server.restart)
    fold = Fold()
    tail = log.tail(fold, lambda change: None, lambda: None)
    await tail.start()
    assert list(fold.requests) == [f"{number:032x}" for number in range(10)]
    await tail.stop()
    await bus.close()


def test_rule_18_power_loss_is_survived_where_the_server_syncs_always(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    server = NatsServer(tmp_path, sync_interval="always")
    write_config(config, server.options)
    assert "sync_interval: always" in config.read_text().replace('"', "")
    default = NatsServer(tmp_path)
    write_config(config, default.options)
    assert "sync_interval: 2m" in config.read_text().replace('"', "")
