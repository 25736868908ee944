"""The bus: one connection to NATS, to any server of a cluster, retried for ever.

A publish leaves in the same turn of the loop, and handlers are plain functions that are called as their messages arrive
(nats_client.py says why). What is published without a connection is lost, as on any core NATS subject, and the protocol
repairs it.
"""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import Callable
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from shared.bus.cancellation import cancellation_kept
from shared.bus.credentials import ANONYMOUS, Credentials
from shared.bus.errors import BusError, PayloadTooLarge
from shared.bus.nats_client import PERMISSIONS_VIOLATION, DirectClient, Handler
from shared.bus.requests import Requests
from shared.subjects import inboxes, is_plain

__all__ = ["Bus", "Handler", "Subscription"]

RECONNECT_WAIT_S = 0.05
REFUSED_WAIT_S = 1.0  # before the next attempt where sign-in or TLS failed: that costs the server most
CONNECT_TIMEOUT_S = 1
PING_INTERVAL_S = 1
MAX_PINGS = 2  # unanswered, after which the server is given up
CLOSE_LIMIT_S = 1.0
COMPLAINT_INTERVAL_S = 1.0

_logger = logging.getLogger(__name__)


def _die(error: BaseException) -> None:
    """A handler failed: the state of this process can no longer be trusted, and the log has the truth."""
    _logger.critical("a message handler failed; the process ends", exc_info=error)
    os._exit(70)


class Subscription:
    """A handler's place on a subject."""

    def __init__(self, client: DirectClient, inner: Any) -> None:
        self._client = client
        self._inner = inner

    async def unsubscribe(self) -> None:
        """Stop handling; harmless when repeated or after the connection is closed."""
        if self._client.handlers.pop(self._inner._id, None) is None:
            return
        try:
            await self._inner.unsubscribe()
        except (nats.errors.Error, ValueError) as error:
            _logger.debug("unsubscribe after close: %s", error)


class Bus:
    """One connection to NATS. Create with Bus.connect.

    num_refused: errors of sign-in, TLS and permissions so far, and messages dropped for an impossible subject.
    """

    def __init__(self, name: str, role: str = "", credentials: Credentials = ANONYMOUS) -> None:
        self.name = name
        self.role = role or name.partition("-")[0]
        self.reconnect_hooks: list[Callable[[], None]] = []
        self.fatal: Callable[[BaseException], None] = _die
        self.num_refused = 0
        self._credentials = credentials
        self._needs_tls = credentials.tls is not None
        self._complained = float("-inf")
        self._connecting: asyncio.Task[Any] | None = None  # the task that awaits connect
        self._client = self._new_client()
        self._requests = Requests("")  # its inbox is drawn once connected

    @classmethod
    async def connect(cls, url: str, name: str, credentials: Credentials = ANONYMOUS, role: str = "") -> "Bus":
        """Connect, waiting for a server as long as it takes.

        url: one, or several of one cluster with commas between; all are tried in turn, in random order at first. name:
        shown by the server's monitoring. role: names the inboxes, so that permissions can be given per role; the name
        up to its first dash if it is empty.
        """
        bus = cls(name, role, credentials)
        urls = url.split(",")
        bus._needs_tls |= any(each.startswith("tls:") for each in urls)
        random.shuffle(urls)
        bus._connecting = asyncio.current_task()
        while True:
            bus._client = bus._new_client()
            try:
                await bus._open(urls)
                bus._connecting = None
                bus._requests = Requests(bus.new_inbox())
                await bus.subscribe(f"{bus._requests.inbox}.*", bus._requests.on_answer)
                return bus
            except (TimeoutError, nats.errors.Error, OSError) as error:
                bus._client.cut()
                _logger.debug("no server at the bus yet: %s", error)
                await asyncio.sleep(RECONNECT_WAIT_S)
            except asyncio.CancelledError:
                bus._client.cut()
                raise

    def _new_client(self) -> DirectClient:
        return DirectClient(self._fail, needs_tls=self._needs_tls)

    async def _open(self, urls: list[str]) -> None:
        await self._client.connect(
            urls,
            name=self.name,
            tls=self._credentials.tls,
            nkeys_seed_str=self._credentials.seed or None,
            inbox_prefix=inboxes(self.role),
            dont_randomize=True,  # they are shuffled once; in turn, the server that was left comes last
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # only ever slept for
            connect_timeout=CONNECT_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=MAX_PINGS,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
        )

    def _fail(self, error: BaseException) -> None:
        self.fatal(error)

    async def _on_error(self, error: Exception) -> None:
        """Most errors are a server that is away; those which only an operator can mend are told.

        nats-py tries again after each of them, for ever, also where connect was cancelled together with an error:
        asyncio.wait_for before Python 3.12 then raises the error alone.
        """
        if self._connecting is not None and self._connecting.cancelling():
            raise asyncio.CancelledError
        text = str(error) or type(error).__name__
        is_permission = PERMISSIONS_VIOLATION in text.lower()
        is_tls = isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in text or " TLS" in text
        is_refusal = is_tls or "authorization" in text.lower()
        if not is_permission and not is_refusal:
            _logger.debug("bus: %s", text)
            return
        self._complain(f"the NATS server refuses: {text}")
        if is_refusal:
            await asyncio.sleep(REFUSED_WAIT_S)

    def _complain(self, what: str) -> None:
        """Count it, and log it at a limited rate."""
        self.num_refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._complained >= COMPLAINT_INTERVAL_S:
            self._complained = now
            _logger.warning("%s (%d so far)", what, self.num_refused)

    async def _on_disconnected(self) -> None:
        _logger.info("bus disconnected")

    async def _on_reconnected(self) -> None:
        _logger.info("bus reconnected")
        for hook in self.reconnect_hooks:
            hook()

    @property
    def is_connected(self) -> bool:
        """Whether a publish would leave now."""
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """The server's limit in bytes for headers and data of one message."""
        return int(self._client.max_payload)

    @property
    def num_subscriptions(self) -> int:
        """Subscriptions of this connection, those for replies among them."""
        return len(self._client._subs)

    def publish(self, subject: str, data: bytes, reply: str = "", headers: bytes = b"") -> bool:
        """Publish in this turn of the loop. headers: a whole header block beginning with NATS/1.0. False: lost, since
        there is no connection, or subject or reply hold what no subject may.

        Raises PayloadTooLarge before anything is sent.
        """
        if not is_plain(subject) or (reply and not is_plain(reply)):
            self._complain(f"publishing to {subject[:80]!r}, reply {reply[:80]!r}")
            return False
        size = len(headers) + len(data)
        if size > self.max_payload:
            raise PayloadTooLarge(size, self.max_payload)
        if headers:
            head = f"HPUB {subject} {reply} {len(headers)} {size}\r\n"
        else:
            head = f"PUB {subject} {reply} {size}\r\n" if reply else f"PUB {subject} {size}\r\n"
        return self._client.write_now(b"%b%b%b\r\n" % (head.encode(), headers, data))

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Call handler(subject, reply, data, headers) for each message, in order, in the call in which it arrives."""

        async def unused(message: Msg) -> None:
            raise AssertionError("messages of this subscription go to its handler")

        inner = await self._client.subscribe(subject, queue=queue, cb=unused)
        self._client.handlers[inner._id] = handler
        return Subscription(self._client, inner)

    async def request(self, subject: str, data: bytes, timeout_s: float, headers: bytes = b"") -> bytes:
        """The first reply. Raises NoResponders at once if nobody listens, TimeoutError, NotConnected and
        PayloadTooLarge."""

        def publish(reply: str) -> bool:
            return self.publish(subject, data, reply, headers)

        return await self._requests.ask(publish, subject, timeout_s)

    def new_inbox(self) -> str:
        """A subject for replies to this process alone."""
        return str(self._client.new_inbox())

    def jetstream(self, timeout_s: float) -> JetStreamContext:
        """nats-py's JetStream context; used only within shared.bus."""
        return self._client.jetstream(timeout=timeout_s)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has seen all that was published and subscribed. Raises BusError if it does not answer.

        nats-py's own flush lets its ping overtake a subscription that waits for the flusher; hence the first line.
        """
        self._client.send_outgoing()
        try:
            await self._client._flush_pending(force_flush=True)
            await self._client.flush(timeout=timeout_s)  # type: ignore[arg-type]  # the type says int, a float works
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise BusError(f"flush: {error}") from error

    async def probe(self, limit_s: float) -> None:
        """Leave the server, in a cluster for another one, unless it answers a ping within limit_s.

        The sockets of a stopped server stay open, and only silence tells.
        """
        if not self.is_connected:
            return
        try:
            with cancellation_kept():
                await self._client.flush(timeout=limit_s)  # type: ignore[arg-type]  # as above
        except (TimeoutError, nats.errors.Error, OSError):
            _logger.warning("the NATS server did not answer within %g s", limit_s)
            await self._client.force_reconnect()

    async def close(self) -> None:
        """Close the connection for good; a server that does not read any more is not waited for."""
        self._client.send_outgoing()
        self._client.forget_pending()
        cut = asyncio.get_running_loop().call_later(CLOSE_LIMIT_S, self._client.cut)
        try:
            await self._client.close()
        finally:
            cut.cancel()
