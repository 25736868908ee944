"""`tokenbus status`: the processes of a running node."""

import sys

import msgspec
from rich.console import Console
from rich.table import Table

from deploy.cli.control import CommandFailed, converse
from deploy.cli.errors import WITHOUT_NODE, NoNode, one_line
from deploy.node.control_messages import ProcessStatus, StatusRequest
from deploy.node.folder import NodeDataDir
from shared.config import ConfigError, build, fail, make_parser, read_options

PROG = "tokenbus status"
DESCRIPTION = (
    "Show the processes of a running node: process ids, whether they are ready, how often they died and were restarted."
)


class StatusConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Which node."""

    data_dir: NodeDataDir = ""


def main(argv: list[str]) -> int:
    """Print a table; 0 when every process is ready, 1 when one is not or no node runs, 2 for a bad option."""
    try:
        config = build(StatusConfig, read_options(StatusConfig, make_parser(StatusConfig, PROG, DESCRIPTION), argv))
        found = [each for each in converse(config.data_dir, StatusRequest()) if isinstance(each, ProcessStatus)]
    except ConfigError as error:
        fail(PROG, str(error))
    except NoNode as error:
        print(f"{PROG}: {error}; {WITHOUT_NODE}", file=sys.stderr)
        return 1
    except (CommandFailed, OSError) as error:
        print(f"{PROG}: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    table = Table("process", "pid", "state", "restarts", box=None)
    for each in found:
        state = ("ready" if each.ready else "not ready") + (", leads" if each.leading else "")
        table.add_row(each.name, "-" if each.pid is None else str(each.pid), state, str(each.num_restarts))
    Console(highlight=False, soft_wrap=True).print(table)
    return 0 if all(each.ready for each in found) else 1
