"""One HTTP request on a connection of its own, by clients as they are: in a hurry, slow, gone half-way."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from dataclasses import dataclass, field
from typing import Any


class Lost(Exception):
    """The server closed or stayed silent where something had to come."""


@dataclass
class Manner:
    """How the client behaves."""

    leave_after: int | None = None  # chunks of the body; 0: as soon as the request is sent
    pause: float = 0.0  # seconds before each read, with a small receive buffer
    half_close: bool = False  # ends its side of the connection behind the request
    receive_buffer: int = 4096


@dataclass
class Reply:
    status: int = 0  # 0: the client left before it came
    body: bytes = b""
    left: bool = False
    arrivals: list[float] = field(default_factory=list)  # when pieces of the body came, time.monotonic()

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[str]:
        """Payloads of a stream, [DONE] too."""
        return re.findall(r"^data: (.*)$", self.body.decode(), re.MULTILINE)


async def ask(port: int, method: str, path: str, body: Any, manner: Manner, timeout: float) -> Reply:
    """Lost, OSError or TimeoutError where there was no whole answer and the client had not left."""
    return await asyncio.wait_for(_ask(port, method, path, body, manner), timeout)


async def _ask(port: int, method: str, path: str, body: Any, manner: Manner) -> Reply:
    raw = socket.socket()
    if manner.pause:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, manner.receive_buffer)
    raw.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 22)
    except BaseException:
        raw.close()
        raise
    reply = Reply()
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        if data:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"\r\n" + data)
        await writer.drain()
        if manner.half_close:
            writer.write_eof()
        if manner.leave_after == 0:
            reply.left = True
            return reply
        await _read(reader, manner, reply)
        return reply
    finally:
        writer.transport.abort() if reply.left else writer.close()


async def _line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\r\n"):
        raise Lost(f"the connection ended in {line!r}")
    return line[:-2].decode("latin-1")


async def _read(reader: asyncio.StreamReader, manner: Manner, reply: Reply) -> None:
    headers: dict[str, str] = {}
    while True:
        reply.status = int((await _line(reader)).split(" ")[1])
        headers.clear()
        while line := await _line(reader):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if reply.status != 100:  # sent to find out whether a client that ended its side still reads
            break
    pieces: list[bytes] = []

    async def take(size: int) -> None:
        if manner.pause:
            await asyncio.sleep(manner.pause)
        try:
            pieces.append(await reader.readexactly(size))
        except asyncio.IncompleteReadError as error:
            raise Lost(f"a body of {size} bytes ended after {len(error.partial)}") from error
        reply.arrivals.append(time.monotonic())

    if headers.get("transfer-encoding") == "chunked":
        while size := int(await _line(reader), 16):
            await take(size)
            await _line(reader)
            if manner.leave_after is not None and len(pieces) >= manner.leave_after:
                reply.left = True
                break
        else:
            await _line(reader)
    else:
        await take(int(headers.get("content-length", "0")))
    reply.body = b"".join(pieces)
