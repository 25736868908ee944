"""What people see of a start without a terminal: lines that tell what is going on, no control characters."""

import io

from rich.console import Console

from deploy.cli.display import NodeDisplay
from deploy.cli.progress import model_progress


def test_node_display_prints_plain_lines() -> None:
    out = io.StringIO()
    display = NodeDisplay(Console(file=out, width=200))
    display.start("Starting")
    display.on_waiting(["nats-server"], {"worker-0": "loading", "gateway-0": ""})
    display.on_death("worker-0", -9, 0.0)
    display.on_death("worker-0", 1, 0.4)
    display.on_waiting(["nats-server", "worker-0", "gateway-0"], {})
    display.on_stopping("gateway")
    display.done()
    assert out.getvalue().splitlines() == [
        "Starting",
        "Starting: 1 ready, waiting for worker-0 (loading), gateway-0",
        "worker-0 died (killed by signal 9), starting it again at once",
        "worker-0 died (exit status 1), starting it again in 0.4 s",
        "Starting: 3 ready",
    ]


def test_node_display_moves_on_a_terminal() -> None:
    out = io.StringIO()
    display = NodeDisplay(Console(file=out, width=80, force_terminal=True))
    display.start("Starting")
    display.on_waiting([], {"worker-0": ""})
    display.on_stopping("gateway")
    display.done()
    assert "Stopping gateway" in out.getvalue()


def test_model_progress_names_each_stage_once() -> None:
    out = io.StringIO()
    with model_progress(Console(file=out, width=80)) as progress:
        for done in (0, 5, 10):
            progress("download smollm2-135m", done, 10)
        progress("verify", 0, 0)
    assert out.getvalue().splitlines() == ["download smollm2-135m", "verify"]
