"""`tokenbus ask "..."`: one question to a running Tokenbus, the answer streamed to the terminal.

Asks over NATS unless --url is given. Without either, the node of the data folder is asked (its nats.url).
"""

import asyncio
import contextlib
import sys
from typing import Annotated, Any

import msgspec

from deploy.cli.answer import AnswerPrinter
from deploy.cli.errors import NoNode
from deploy.cli.http_answer import AnswerFailed, stream_answer
from deploy.cli.nats_access import NatsAccess, find_access, no_answer
from shared.bus.credentials import CredentialsError
from shared.client import EndEvent, TextEvent, TokenbusClient
from shared.config import ConfigError, build, fail, make_parser, read_options
from shared.errors import RequestError

PROG = "tokenbus ask"
CONNECT_TIMEOUT_S = 10.0


class AskConfig(NatsAccess, kw_only=True, frozen=True):
    """Where to ask, and how the answer is sampled."""

    url: Annotated[
        str,
        msgspec.Meta(
            description="ask over HTTP at this URL instead, e.g. http://127.0.0.1:8000",
            pattern="^$|^https?://[^/]",
            extra={"expects": "a URL such as http://127.0.0.1:8000"},
        ),
    ] = ""
    model: Annotated[str, msgspec.Meta(description="model to ask; none: the first one served")] = ""
    max_tokens: Annotated[int, msgspec.Meta(description="most tokens of the answer", ge=1)] = 512
    temperature: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=2)] | None,
        msgspec.Meta(description="0 for the likeliest tokens; none: the model's own"),
    ] = None
    seed: Annotated[int | None, msgspec.Meta(description="the same seed gives the same answer")] = None
    stats: Annotated[bool, msgspec.Meta(description="print tokens, time to first token and tokens/s on stderr")] = True


def main(argv: list[str]) -> int:
    """Ask; 0 when the answer is whole, 1 when not, 2 for a bad option."""
    parser = make_parser(AskConfig, PROG, "Ask a running Tokenbus one question.")
    parser.add_argument("question", nargs="+", help="the question; several words are joined")
    try:
        config = build(AskConfig, read_options(AskConfig, parser, argv))
    except ConfigError as error:
        fail(PROG, str(error))
    question = " ".join(parser.parse_args(argv).question)
    if not question.strip():
        fail(PROG, "the question is empty")
    if config.url and config.nats:
        fail(PROG, "--url and --nats are two ways to ask: give one of them")
    printer = AnswerPrinter(_write)
    try:
        if config.url:
            num_tokens = stream_answer(config.url, _chat(config, question), printer.on_text)
        else:
            num_tokens = asyncio.run(_ask_nats(config, question, printer))
    except NoNode as error:
        print(f"{PROG}: {error}; start `tokenbus up`, or give --nats or --url", file=sys.stderr)
        return 1
    except (AnswerFailed, CredentialsError, RequestError) as error:
        printer.on_break()
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        printer.on_break()
        return 130
    summary = printer.on_end(num_tokens)
    if config.stats:
        print(summary, file=sys.stderr)
    return 0


async def _ask_nats(config: AskConfig, question: str, printer: AnswerPrinter) -> int:
    """The number of output tokens. Raises RequestError, AnswerFailed, NoNode."""
    url, credentials = find_access(config, "client")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            client = await TokenbusClient.connect(url, "ask", credentials)
    except TimeoutError:
        raise AnswerFailed(no_answer(url, credentials)) from None
    num_tokens = 0
    async with client, contextlib.aclosing(client.stream(**_chat(config, question))) as events:
        async for event in events:
            if isinstance(event, TextEvent):
                printer.on_text(event.text)
            elif isinstance(event, EndEvent):
                num_tokens += event.num_tokens
    return num_tokens


def _chat(config: AskConfig, question: str) -> dict[str, Any]:
    """An OpenAI chat completion of one user turn."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": question}], "max_tokens": config.max_tokens}
    for name in ("model", "temperature", "seed"):
        value = getattr(config, name)
        if value not in (None, ""):
            chat[name] = value
    return chat


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
