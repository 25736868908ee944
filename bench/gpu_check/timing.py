"""Times on a device: medians of CUDA events after warm-up, with other data in the caches (see DeviceClock)."""

from collections.abc import Callable

import torch

Launch = Callable[[], object]

_WARM_UPS = 2


def capture(launch: Launch) -> Callable[[], None]:
    """The launch as a graph, so that a replay is one call: Python's own time between launches is not measured.

    What the launch reads and writes must stay alive and where it is.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's stub says nothing of it
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph.replay


def capture_if_possible(launch: Launch) -> Launch:
    """The launch as it is where a library does what a capture cannot bear."""
    try:
        return capture(launch)
    except RuntimeError:
        torch.cuda.synchronize()
        return launch
