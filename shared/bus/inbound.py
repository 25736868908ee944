"""What a NATS server sends, cut into messages in the call in which it arrives.

nats-py reads through a stream, a task and regular expressions: at one message per engine step and hop that was a third
of what a hop costs. Here a message whose subscription has a plain function as its handler goes straight there. All
else (PING, INFO, errors, messages of nats-py's own subscriptions) waits, byte for byte, for nats-py's own parser.

    MSG subject sid [reply] size\\r\\n data \\r\\n
    HMSG subject sid [reply] header_size size\\r\\n headers data \\r\\n
"""

import asyncio
from collections.abc import Callable

OnMessage = Callable[[int, bytes, bytes, bytes, bytes], bool]
OnOther = Callable[[bytes], None]

NUM_WORDS = {b"MSG": 4, b"HMSG": 5}  # of the first line, without reply


class Splitter:
    """Cuts a stream of bytes; pure.

    on_message(sid, subject, reply, data, headers) is called for each whole message, in order; where it returns False,
    and for every other command, on_other gets the bytes as they came. feed raises ValueError on what makes no sense.
    """

    def __init__(self, on_message: OnMessage, on_other: OnOther) -> None:
        self._on_message = on_message
        self._on_other = on_other
        self._pieces: list[bytes] = []
        self._num_missing = 0  # bytes without which the first command in the pieces cannot be whole

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._pieces:
            self._pieces.append(data)
            self._num_missing -= len(data)
            if self._num_missing > 0:
                return  # joined once, not with every piece: a message may have megabytes
            data = b"".join(self._pieces)
            self._pieces = []
        used = self._split(data)
        if used < len(data):
            self._pieces.append(data[used:] if used else data)

    def _split(self, data: bytes) -> int:
        """Bytes of data that were whole commands; notes how many more the next one needs at least."""
        position, end = 0, len(data)
        while position < end:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._num_missing = 1
                return position
            words = data[position:line_end].split(b" ")
            stop = line_end + 2
            num_words = NUM_WORDS.get(words[0])
            if num_words is None:
                self._on_other(data[position:stop])
                position = stop
                continue
            if not num_words <= len(words) <= num_words + 1:
                raise ValueError(f"{len(words)} words")
            size = int(words[-1])
            body, stop = stop, stop + size + 2
            if stop > end:
                self._num_missing = stop - end
                return position
            headers_end = body + int(words[-2]) if num_words == 5 else body
            reply = words[3] if len(words) > num_words else b""
            message = data[headers_end : body + size]
            if not self._on_message(int(words[2]), words[1], reply, message, data[body:headers_end]):
                self._on_other(data[position:stop])
            position = stop
        return position


class InboundProtocol(asyncio.Protocol):
    """Takes a connection over from asyncio's streams, whose writer goes on as it was.

    inner: the protocol of the streams. on_receiving(True) and on_receiving(False) are called around the calls of
    on_message for what came in together. next_other() gives what on_message did not take, in order, and ends with the
    connection's error: ConnectionError or another OSError.
    """

    def __init__(
        self, inner: asyncio.StreamReaderProtocol, on_message: OnMessage, on_receiving: Callable[[bool], None]
    ) -> None:
        self._inner = inner
        self._on_receiving = on_receiving
        self._others: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._splitter = Splitter(on_message, self._others.put_nowait)
        self._is_broken = False

    async def next_other(self) -> bytes:
        """The next bytes for nats-py's parser. Raises what ended the connection."""
        other = await self._others.get()
        if isinstance(other, Exception):
            raise other
        return other

    # ---- what the transport calls -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol; what makes no sense ends the connection."""
        if self._is_broken:
            return
        self._on_receiving(True)
        try:
            self._splitter.feed(data)
        except ValueError:
            self._is_broken = True
            self._others.put_nowait(ConnectionError("the NATS server sent a message that makes no sense"))
        finally:
            self._on_receiving(False)

    def eof_received(self) -> bool | None:
        """See asyncio.Protocol."""
        self._others.put_nowait(ConnectionResetError("the NATS server closed the connection"))
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._others.put_nowait(exc or ConnectionResetError("the connection to the NATS server is closed"))
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.resume_writing()
