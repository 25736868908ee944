"""The smallest of HTTP clients, for the probes of processes on this machine."""

import asyncio


async def http_get(port: int, path: str) -> tuple[int, str]:
    """Status and body. OSError when nobody listens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        while chunk := await reader.read():
            answer += chunk
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode(errors="replace")
