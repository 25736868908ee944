"""`tokenbus restart`: start the services of a running node anew; with --rolling one by one, without a failed stream."""

import sys
from typing import Annotated

import msgspec
from rich.console import Console

from deploy.cli.control import CommandFailed, converse
from deploy.cli.display import NodeDisplay
from deploy.cli.errors import WITHOUT_NODE, NoNode, one_line
from deploy.node.control_messages import Progress, RestartRequest
from deploy.node.folder import NodeDataDir
from shared.config import ConfigError, build, fail, make_parser, read_options

PROG = "tokenbus restart"
DESCRIPTION = """Start the services of a running node anew, e.g. after an update. With --rolling one process at a time:
a replacement is ready before its predecessor drains, workers go one after the other, and no stream fails."""


class RestartConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What is restarted, and how."""

    rolling: Annotated[bool, msgspec.Meta(description="one process at a time, waiting for all streams")] = False
    service: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1)], ...],
        msgspec.Meta(description="services to restart, nats-server among them if named; none: all five"),
    ] = ()
    data_dir: NodeDataDir = ""


def main(argv: list[str]) -> int:
    """Restart and show it; 0 when every process was replaced and went by itself, 1 when not, 2 for a bad option."""
    console = Console(highlight=False, soft_wrap=True)
    display = NodeDisplay(console)
    try:
        config = build(RestartConfig, read_options(RestartConfig, make_parser(RestartConfig, PROG, DESCRIPTION), argv))
        display.start("Restarting")
        for answer in converse(config.data_dir, RestartRequest(config.rolling, list(config.service))):
            if isinstance(answer, Progress):
                display.on_stage(answer.process, answer.stage, answer.pid)
    except ConfigError as error:
        fail(PROG, str(error))
    except NoNode as error:
        display.done()
        print(f"{PROG}: {error}; {WITHOUT_NODE}", file=sys.stderr)
        return 1
    except (CommandFailed, OSError) as error:
        display.done()
        print(f"{PROG}: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        display.done()
        print(f"{PROG}: the node finishes the process at hand and restarts no other", file=sys.stderr)
        return 130
    display.done()
    console.print("Restarted.")
    return 0
