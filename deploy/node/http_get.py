"""The smallest of HTTP clients, for the probes of processes on this machine."""

import asyncio

LOOPBACK = "127.0.0.1"


async def http_get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET on the loopback. OSError when nobody listens, ValueError when it is no HTTP.

    HTTP/1.0, so that no server sends the body in chunks.
    """
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        fields = head.split()
        if len(fields) < 2:
            raise ValueError("no status line")
        return int(fields[1]), body
    finally:
        writer.close()
