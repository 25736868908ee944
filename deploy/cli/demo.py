"""`tokenbus demo`: five services and nats-server start, answer one question over HTTP, and stop."""

import asyncio
import sys
import tempfile
from typing import Annotated

import msgspec
from rich.console import Console

from deploy.cli.answer import AnswerPrinter
from deploy.cli.errors import one_line
from deploy.cli.http_answer import AnswerFailed, stream_answer
from deploy.cli.running import START_ERRORS, PreparedNode, prepared_node, running_node
from deploy.node.config import DEFAULT_MODEL, NodeConfig
from shared.config import ConfigError, build, fail, make_parser, read_options

PROG = "tokenbus demo"
DRAIN_TIMEOUT_S = 10.0
LOG_MAX_BYTES = 64 * 1024**2  # one answer is a few KB; the default would not fit a small /tmp


class DemoConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What is asked."""

    question: Annotated[str, msgspec.Meta(description="the question", min_length=1)] = "What is the capital of France?"
    model: Annotated[str, msgspec.Meta(description="model to ask, added if absent", min_length=1)] = DEFAULT_MODEL
    max_tokens: Annotated[int, msgspec.Meta(description="most tokens of the answer", ge=1)] = 64


def main(argv: list[str]) -> int:
    """Run the demo; 0 when the answer was whole and everything stopped by itself."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        config = build(DemoConfig, read_options(DemoConfig, make_parser(DemoConfig, PROG, __doc__), argv))
        with tempfile.TemporaryDirectory(prefix="tokenbus-demo-") as folder:
            node = NodeConfig(port=0, data_dir=folder, model=config.model, drain_timeout_s=DRAIN_TIMEOUT_S)
            with prepared_node(node, {"log_max_bytes": LOG_MAX_BYTES}, console) as prepared:
                return asyncio.run(_run(prepared, config, console))
    except ConfigError as error:
        fail(PROG, str(error))
    except (*START_ERRORS, AnswerFailed) as error:
        print(f"{PROG}: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _run(prepared: PreparedNode, config: DemoConfig, console: Console) -> int:
    stopping = asyncio.Event()
    async with running_node(prepared, console, stopping) as node:
        if stopping.is_set():
            return 130
        names = ", ".join(f"{name} {pid}" for name, pid in node.pids.items())
        console.print(f"{len(node.pids)} processes answer on {prepared.http_url}: {names}", markup=False)
        console.print(f"\n> {config.question}", style="bold", markup=False)
        asking = asyncio.ensure_future(asyncio.to_thread(_ask, prepared.http_url, config))
        stop = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({asking, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if stopping.is_set():
            return 130
        console.print(f"\n{asking.result()}", style="green", markup=False)
    console.print("All processes have ended." if node.is_clean else "Not every process ended by itself.")
    return 0 if node.is_clean else 1


def _ask(url: str, config: DemoConfig) -> str:
    """The summary of the answer, after it was printed. Blocks; raises AnswerFailed."""
    printer = AnswerPrinter(_write)
    messages = [{"role": "user", "content": config.question}]
    body = {"messages": messages, "max_tokens": config.max_tokens, "temperature": 0}
    return printer.on_end(stream_answer(url, body, printer.on_text))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
