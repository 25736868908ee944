"""Cutting what a NATS server sends into messages, however the bytes come in."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.inbound import InboundProtocol, Splitter

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
MESSAGES = [
    (7, b"a.b", b"", b"", b""),
    (7, b"a.b", b"_INBOX.x.1", b"MSG a 1 2\r\nhi\r\n", b""),
    (1234567, b"c", b"", b"\r\n" * 50, HEADERS),
    (8, b"d", b"_INBOX.x.2", b"", HEADERS),
    (7, b"a.b", b"", b"x" * 5000, b""),
]
OTHERS = [b"PING\r\n", b'INFO {"server_id":"MSG"}\r\n', b"-ERR 'Stale Connection'\r\n", b"+OK\r\n"]


def on_the_wire(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bytes:
    middle = b" %b" % reply if reply else b""
    if headers:
        sizes = len(headers), len(headers) + len(data)
        return b"HMSG %b %d%b %d %d\r\n%b%b\r\n" % (subject, sid, middle, *sizes, headers, data)
    return b"MSG %b %d%b %d\r\n%b\r\n" % (subject, sid, middle, len(data), data)


COMMANDS = [on_the_wire(*message) for message in MESSAGES]


def taken_from(pieces: list[bytes], sids: set[int]) -> tuple[list[tuple[int, bytes, bytes, bytes, bytes]], bytes]:
    taken: list[tuple[int, bytes, bytes, bytes, bytes]] = []
    others: list[bytes] = []

    def on_message(*message: object) -> bool:
        if message[0] in sids:
            taken.append(message)  # type: ignore[arg-type]
        return message[0] in sids

    splitter = Splitter(on_message, others.append)
    for piece in pieces:
        splitter.feed(piece)
    return taken, b"".join(others)


@given(st.lists(st.sampled_from([*COMMANDS, *OTHERS]), max_size=12), st.lists(st.integers(0, 8000), max_size=30))
def test_any_cut_of_the_bytes_gives_the_same(commands: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(commands)
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    pieces = [stream[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]
    sids = {7, 1234567}
    taken, others = taken_from(pieces, sids)
    by_command = dict(zip(COMMANDS, MESSAGES, strict=True))
    ours = [each for each in commands if each in by_command and by_command[each][0] in sids]
    assert taken == [by_command[each] for each in ours]
    assert others == b"".join(each for each in commands if each not in ours)


def test_a_large_message_is_joined_once() -> None:
    """Each byte is copied a fixed number of times, however many pieces it comes in."""
    data = bytes(1 << 20)
    stream = on_the_wire(7, b"a", b"", data, b"")
    copied = 0

    class Piece(bytes):
        def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
            nonlocal copied
            part = super().__getitem__(key)  # type: ignore[index]
            copied += len(part)
            return part

    taken, _ = taken_from([Piece(stream[at : at + 1000]) for at in range(0, len(stream), 1000)], {7})
    assert [each[3] for each in taken] == [data] and copied < 3000


@pytest.mark.parametrize(
    "bad", [b"MSG a 7\r\n", b"MSG a x 1\r\n1\r\n", b"MSG a 7 one\r\n", b"HMSG a 7 x 5\r\n12345\r\n"]
)
async def test_nonsense_ends_the_connection_after_what_came_before(bad: bytes) -> None:
    inner = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    taken: list[object] = []

    def on_message(*message: object) -> bool:
        taken.append(message)
        return True

    inbound = InboundProtocol(inner, on_message, lambda is_receiving: None)
    inbound.data_received(b"PING\r\n" + COMMANDS[0])
    inbound.data_received(bad + COMMANDS[0])
    inbound.data_received(COMMANDS[0])
    assert await inbound.next_other() == b"PING\r\n" and len(taken) == 1
    with pytest.raises(ConnectionError):
        await inbound.next_other()
