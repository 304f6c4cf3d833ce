"""A thousand open streams, of which two hundred are never read and two hundred belong to clients that vanish: memory
stays bounded, no stream starves, and every slot and page comes back. Plain sockets: a client library's own costs would
drown the server's."""

import asyncio
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from support import MODEL, Server, serving, user

STREAMS = int(os.environ.get("VOLLEY_STREAMS", "1000"))
SLOTS = 256
TOKENS = 24  # of each healthy stream: a few rounds of every one of them
UNSENT = 32 * 1024  # bytes that the server keeps for a reader
PER_STREAM = 2 * UNSENT + 64 * 1024  # what waits and what is being written, the request, its slot's host state
KV_PAGES = 6144
KV_BYTES = KV_PAGES * 16 * 5 * 1024  # 16 positions a page, 5 KiB each for pocket and its drafter (volley inspect)


@dataclass
class Result:
    kind: str
    status: int = 0
    chunks: list[float] = field(default_factory=list)  # arrival times
    done: bool = False
    error: bool = False
    refusal: bytes = b""  # the body of an answer that is no stream

    @property
    def gap(self) -> float:
        return max((b - a for a, b in zip(self.chunks, self.chunks[1:])), default=0.0)


def request(number: int, kind: str) -> bytes:
    fields = {
        "model": MODEL,
        "messages": user(f"Tell me story {number % 50}."),
        "stream": True,
        "temperature": 1,
        "seed": number,
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    if kind == "unread":  # much text for few rows of the model, and more than the kernel and the server will hold
        fields |= {"max_tokens": 1000, "logprobs": True, "top_logprobs": 20, "volley": {"speculation": False}}
    body = json.dumps(fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Crowd:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.opened = asyncio.Event()  # all are connected: now all ask at once
        self.waiting = 0  # readers that do not read, and have begun
        self.over = asyncio.Event()  # the server has nothing left to do

    async def run(self) -> tuple[list[Result], int]:
        """All results, and the highest resident memory of the server."""
        kinds = ["unread" if i % 5 == 1 else "vanishing" if i % 5 == 2 else "healthy" for i in range(STREAMS)]
        streams = [asyncio.create_task(self._stream(i, kind)) for i, kind in enumerate(kinds)]
        others = [stream for stream, kind in zip(streams, kinds, strict=True) if kind != "unread"]
        await asyncio.sleep(1)
        self.opened.set()
        highest = 0
        while not all(stream.done() for stream in streams):
            await asyncio.sleep(0.2)
            highest = max(highest, self.server.resident_bytes())
            done = sum(stream.done() for stream in streams)
            if all(stream.done() for stream in others) and done + self.waiting == STREAMS and self._idle():
                self.over.set()
        return [stream.result() for stream in streams], highest

    def _idle(self) -> bool:
        return self.server.metric("num_requests_running") + self.server.metric("num_requests_waiting") == 0

    async def _stream(self, number: int, kind: str) -> Result:
        result = Result(kind)
        connection = socket.socket()
        if kind == "unread":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.server.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=64 * 1024)
        try:
            await self.opened.wait()
            writer.write(request(number, kind))
            result.status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    result.done = True
                    break
                if not line.startswith(b"data: "):
                    result.refusal = line if line.startswith(b"{") else result.refusal
                    continue
                result.chunks.append(time.monotonic())
                result.error = result.error or line.startswith(b'data: {"error"')
                if kind == "vanishing" and len(result.chunks) == 2:
                    break
                if kind == "unread" and len(result.chunks) == 1:
                    self.waiting += 1
                    await self.over.wait()
                    self.waiting -= 1
        except ConnectionError:
            result.error = True
        finally:
            writer.close()
        return result


@pytest.fixture
def busy() -> Iterator[Server]:
    limits = f"--max-connections {STREAMS + 50} --max-queue {STREAMS * 8 // 7 + 1} --max-unsent-bytes {UNSENT}"
    yield from serving(f"--max-num-seqs {SLOTS} --kv-pages {KV_PAGES} {limits} --log-level error")


def test_a_thousand_streams(busy: Server, capsys: pytest.CaptureFixture[str]) -> None:
    before = busy.resident_bytes()
    start = time.monotonic()
    results, highest = asyncio.run(Crowd(busy).run())
    seconds = time.monotonic() - start
    healthy = [result for result in results if result.kind == "healthy"]
    assert len(results) == STREAMS and len(healthy) == STREAMS * 3 // 5
    others = Counter((result.kind, result.status, result.refusal) for result in results if result.status != 200)
    assert not others, others
    assert all(result.done and not result.error for result in healthy), "a healthy stream did not end"
    assert all(len(result.chunks) == 2 for result in results if result.kind == "vanishing")
    assert all(result.error for result in results if result.kind == "unread"), "kept all for readers that do not read"

    deadline = time.monotonic() + 120
    while busy.metric("num_requests_running") + busy.metric("num_requests_waiting") > 0:
        assert time.monotonic() < deadline, "slots were not returned"
        time.sleep(0.05)
    assert busy.metric("kv_cache_usage_perc") == 0, "pages were not returned"

    growth = highest - before
    gap = max(result.gap for result in healthy)
    figures = f"memory grew by {growth / 2**20:.0f} MiB, the largest gap of a healthy stream was {gap:.2f} s"
    with capsys.disabled():
        print(f"\n{STREAMS} streams in {seconds:.0f} s: {figures}")
    assert growth < KV_BYTES + STREAMS * PER_STREAM
    assert gap < seconds / 2, "a stream starved"
