"""`tokenbus up`: serve from this machine until SIGTERM or Ctrl-C; a second Ctrl-C does not wait for what runs."""

import asyncio
import sys

from rich.console import Console

from deploy.cli.errors import one_line
from deploy.cli.running import START_ERRORS, PreparedNode, prepared_node, running_node
from deploy.node.config import node_config
from shared.config import ConfigError, build, fail, make_parser, read_options, without_password

PROG = "tokenbus up"
DESCRIPTION = "Run nats-server and all services on this machine as separate processes, and keep them running."


def main(argv: list[str]) -> int:
    """Serve until stopped; 0 after a clean drain, 1 when something failed, 2 for a bad option."""
    console = Console(highlight=False, soft_wrap=True)
    kind = node_config()
    try:
        given = read_options(kind, make_parser(kind, PROG, DESCRIPTION), argv)
        with prepared_node(build(kind, given), given, console) as prepared:
            return asyncio.run(_serve_until_stopped(prepared, console))
    except ConfigError as error:
        fail(PROG, str(error))
    except START_ERRORS as error:
        print(f"{PROG}: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _serve_until_stopped(prepared: PreparedNode, console: Console) -> int:
    stopping = asyncio.Event()
    async with running_node(prepared, console, stopping) as node:
        if not stopping.is_set():
            console.print(f"Tokenbus serves {', '.join(prepared.served_names)}", style="bold", markup=False)
            console.print(f"  HTTP  {prepared.http_url}/v1", markup=False)
            console.print(f"  NATS  {without_password(prepared.nats_url)}", markup=False)
            if prepared.identities is not None:
                console.print(f"  keys  {prepared.identities.root}", markup=False)
            console.print(f"  logs  {prepared.folder.root / 'logs'}", markup=False)
            console.print("Stop with Ctrl-C.")
        await stopping.wait()
    console.print("Stopped." if node.is_clean else "Stopped, but not every process went by itself: see its log.")
    return 0 if node.is_clean else 1
