"""`tokenbus log verify`: fold snapshot and log, and say whether anything is wrong with them."""

import asyncio
import sys
from typing import Annotated

import msgspec

from deploy.cli.errors import NoNode
from deploy.cli.nats_access import NatsAccess, find_access, no_answer
from shared.bus.client import Bus
from shared.bus.credentials import Credentials, CredentialsError
from shared.bus.nats_log import NatsLog
from shared.config import SHARD_PATTERN, ConfigError, build, fail, make_parser, read_options, without_password
from shared.log.port import LogUnavailable
from shared.log.verify import Report, verify

PROG = "tokenbus log verify"
ACTION = "verify"
USAGE = "usage: tokenbus log verify [options]; `tokenbus log verify --help` lists them"
VERIFY_ROLE = "verify"
CONNECT_TIMEOUT_S = 10.0


class LogConfig(NatsAccess, kw_only=True, frozen=True):
    """Which log, and how it is reported."""

    shard: Annotated[str, msgspec.Meta(description="shard whose log it is", pattern=SHARD_PATTERN)] = "s0"
    json: Annotated[bool, msgspec.Meta(description="print one JSON object, with the token ids of each request")] = False


class LogUnreadable(RuntimeError):
    """There is no such log, or no server; the message says which."""


def main(argv: list[str]) -> int:
    """0 when the log is clean, 1 when something is wrong with it or it cannot be read, 2 for a bad option."""
    if argv[:1] != [ACTION]:
        if argv in (["-h"], ["--help"]):
            print(USAGE)
            return 0
        print(USAGE, file=sys.stderr)
        return 2
    try:
        parser = make_parser(LogConfig, PROG, "Read a shard's log and count what must not be in it.")
        config = build(LogConfig, read_options(LogConfig, parser, argv[1:]))
    except ConfigError as error:
        fail(PROG, str(error))
    try:
        report = asyncio.run(_verify(*find_access(config, VERIFY_ROLE), config.shard))
    except NoNode as error:
        print(f"{PROG}: {error}; give --nats or another --data-dir", file=sys.stderr)
        return 1
    except (CredentialsError, LogUnreadable) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(report).decode() if config.json else _summary(report))
    return 0 if report.clean else 1


async def _verify(url: str, credentials: Credentials, shard: str) -> Report:
    """Fold the log. Raises LogUnreadable."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            bus = await Bus.connect(url, "log-verify", credentials, role=VERIFY_ROLE)
    except TimeoutError:
        raise LogUnreadable(no_answer(url, credentials)) from None
    try:
        return await verify(NatsLog(bus, shard))
    except LogUnavailable as error:
        raise LogUnreadable(f"shard {shard} at {without_password(url)}: {error}") from None
    finally:
        await bus.close()


def _summary(report: Report) -> str:
    running = sum(request.finish_reason is None for request in report.requests.values())
    num_tokens = sum(len(request.token_ids) for request in report.requests.values())
    lines = [
        f"{report.num_records} records, {len(report.requests)} requests ({running} running), {num_tokens} tokens",
        f"lost {report.lost}, duplicated {report.duplicated}, foreign {report.foreign}, "
        f"prefix mismatched {report.prefix_mismatched}, malformed {report.malformed}",
        "clean" if report.clean else "NOT CLEAN",
    ]
    return "\n".join(lines)
