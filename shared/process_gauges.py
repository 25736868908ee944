"""What a process holds, as gauges that return to their baseline when its work is done (invariant I4).

Open file descriptors and resident memory are there already: process_open_fds and process_resident_memory_bytes of
prometheus_client's own collector.
"""

import asyncio
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Gauge


def export_process_gauges(num_subscriptions: Callable[[], int], registry: CollectorRegistry = REGISTRY) -> None:
    """Export them for the process of the running event loop; call once. num_subscriptions: of its bus, 0 without."""
    loop = asyncio.get_running_loop()
    tasks = Gauge(
        "tokenbus_asyncio_tasks", "Tasks of the event loop; one that grows without load is a leak", registry=registry
    )
    tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    subscriptions = Gauge("tokenbus_bus_subscriptions", "Subscriptions of the connection to NATS", registry=registry)
    subscriptions.set_function(num_subscriptions)
