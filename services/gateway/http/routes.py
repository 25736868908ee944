"""From method and path to an endpoint; every error that an endpoint raises becomes an answer here."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from services.gateway.http.exchange import ClientGone, Exchange
from shared.errors import RequestError, server_error

Endpoint = Callable[[Exchange], Awaitable[None]]
OnAnswered = Callable[[Exchange], None]

CLIENT_CLOSED = 499


class Routes:
    """The gateway as an ASGI application.

    A path that ends with a slash is a prefix; the longest one wins. While an endpoint runs, a client that goes away
    cancels it: it raises CancelledError where it waits, cleans up, and the exchange counts as 499. access_log: log
    every exchange at level info; else only those that failed.
    """

    def __init__(self, log: FilteringBoundLogger, on_answered: OnAnswered, access_log: bool = False) -> None:
        self._log = log
        self._access_log = access_log
        self._on_answered = on_answered
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._prefixes: dict[str, dict[str, Endpoint]] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Serve this method and path. GET serves HEAD too."""
        table = self._prefixes if path.endswith("/") and path != "/" else self._exact
        table.setdefault(path, {})[method] = endpoint

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        exchange = Exchange(scope, receive, send)
        started = time.monotonic()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an ASGI application runs in a task")
        exchange.connection.take(exchange, task.cancel)
        try:
            await self._answer(exchange)
        except (ClientGone, asyncio.CancelledError):
            if not exchange.connection.transport.is_closing() and not exchange.connection.is_refused:
                raise
            task.uncancel()
            exchange.status = CLIENT_CLOSED
        finally:
            exchange.connection.let_go(exchange)
            if not exchange.connection.is_refused:
                self._on_answered(exchange)
                self._log_exchange(exchange, time.monotonic() - started)

    def _log_exchange(self, exchange: Exchange, duration_s: float) -> None:
        log = self._log.info if self._access_log or exchange.status >= 400 else self._log.debug
        num_tokens = exchange.num_tokens
        counts = {"num_prompt_tokens": num_tokens[0], "num_output_tokens": num_tokens[1]} if num_tokens else {}
        log(
            "request",
            method=exchange.method,
            path=exchange.path[:128],
            status=exchange.status,
            request_id=exchange.request_id,
            duration_s=round(duration_s, 4),
            **counts,
        )

    async def _answer(self, exchange: Exchange) -> None:
        try:
            methods = self._find(exchange.path)
            endpoint = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
            if endpoint is None:
                await _wrong_method(exchange, methods)
                return
            await endpoint(exchange)
        except RequestError as error:
            await exchange.answer_error(error)
        except ClientGone:
            raise
        except Exception as error:
            self._log.exception("an endpoint failed", path=exchange.path[:128], request_id=exchange.request_id)
            if exchange.status:
                raise
            await exchange.answer_error(server_error(f"Internal error: {type(error).__name__}."))

    def _find(self, path: str) -> dict[str, Endpoint]:
        methods = self._exact.get(path)
        if methods is not None:
            return methods
        matching = [prefix for prefix in self._prefixes if path.startswith(prefix) and len(path) > len(prefix)]
        if not matching:
            raise RequestError("There is nothing at this path.", code="not_found", status=404)
        return self._prefixes[max(matching, key=len)]


async def _wrong_method(exchange: Exchange, methods: dict[str, Endpoint]) -> None:
    allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
    error = RequestError(f"{exchange.method} is not allowed here.", code="method_not_allowed", status=405)
    await exchange.answer_error(error, [(b"allow", ", ".join(allowed).encode("ascii"))])
