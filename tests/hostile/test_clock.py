"""A wall clock that is set by hours, forward and back, while requests run: what has a date follows it, and nothing else
does. wall_clock.c moves the clock of the server's process alone."""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import STORY, Server, user

HOUR = 3600
SHIFTS = [5 * HOUR, -7 * HOUR, 0, 30 * 24 * HOUR, -HOUR]
EACH_S = 0.05  # how long the clock stays at one of them
LIMIT_S = 1  # each limit of a wait here
# A limit by the moved clock would be over at once, or in hours. A busy machine may be late.
LATE_S = 40


class WallClock:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "shift"
        self.library = folder / "wall_clock.so"
        source = Path(__file__).with_name("wall_clock.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", self.library, source], check=True)
        self.set(0)

    def set(self, seconds: int) -> None:
        # In place: the process has mapped it.
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))

    @contextmanager
    def jumping(self) -> Iterator[None]:
        over = threading.Event()

        def jump() -> None:
            while not over.is_set():
                for shift in SHIFTS:
                    self.set(shift)
                    over.wait(EACH_S)

        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.set(0)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def moved(clock: WallClock) -> Iterator[Server]:
    """Two slots and two clients' keys, so that requests wait for one another."""
    environment = {"LD_PRELOAD": str(clock.library), "WALL_CLOCK_FILE": str(clock.file), "VOLLEY_API_KEYS": "one,two"}
    limits = f"--idle-timeout {LIMIT_S} --receive-timeout {LIMIT_S} --request-timeout {LATE_S} --drain-timeout {LATE_S}"
    with Server(f"--threads 1 --max-num-seqs 2 {limits}", environment) as running:
        yield running


def key(name: str = "one") -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": user(STORY), "max_tokens": 300, "temperature": 0, "ignore_eos": True, **fields}


def stream(server: Server, name: str = "one", **fields: Any) -> tuple[str, str, float]:
    """Text, reason and when it ended; a stream without its end is an error."""
    sent = body(stream=True, **fields)
    status, _, answer = server.request("POST", "/v1/chat/completions", sent, key(name))
    assert status == 200, answer
    *chunks, end = [line[6:] for line in answer.decode().split("\n\n") if line.startswith("data: ")]
    assert end == "[DONE]", answer[-300:]
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    return "".join(c["delta"].get("content") or "" for c in choices), choices[-1]["finish_reason"], time.monotonic()


def test_dates_follow_the_wall_clock(clock: WallClock, moved: Server) -> None:
    """And so the library works: the other tests would pass without it."""
    for shift in (5 * HOUR, -5 * HOUR):
        clock.set(shift)
        _, headers, chat = moved.request("POST", "/v1/chat/completions", body(max_tokens=1), key())
        asked = {"input": "Hello.", "max_output_tokens": 1}
        response = json.loads(moved.request("POST", "/v1/responses", asked, key())[2])
        date = email.utils.parsedate_to_datetime(headers["date"]).timestamp()
        for told in (json.loads(chat)["created"], response["created_at"], date):
            assert abs(told - (time.time() + shift)) < HOUR
    clock.set(0)


def test_streams_go_on_and_shares_stay_fair(clock: WallClock, moved: Server) -> None:
    alone = stream(moved)[:2]
    assert alone[1] == "length"
    with clock.jumping(), ThreadPoolExecutor() as pool:
        many = [pool.submit(stream, moved, "one", timeout=LATE_S) for _ in range(8)]
        other = pool.submit(stream, moved, "two", timeout=LATE_S)
        ended = [running.result(timeout=2 * LATE_S) for running in [*many, other]]
    assert [answer[:2] for answer in ended] == [alone] * len(ended)
    assert ended[-1][2] < max(at for _, _, at in ended[:-1]), "the other client waited for all of the first one's"


def test_a_requests_timeout_lasts_what_it_says(clock: WallClock, moved: Server) -> None:
    sent = body(max_tokens=1500, n=8, timeout=LIMIT_S, volley={"speculation": False})
    with clock.jumping():
        began = time.monotonic()
        status, _, answer = moved.request("POST", "/v1/chat/completions", sent, key())
        assert LIMIT_S <= time.monotonic() - began < LATE_S
    assert status == 200, answer
    assert "timeout" in {choice["stop_reason"] for choice in json.loads(answer)["choices"]}


def test_connections_stay_open_as_long_as_they_may(clock: WallClock, moved: Server) -> None:
    with clock.jumping():
        client = http.client.HTTPConnection("127.0.0.1", moved.port, timeout=LATE_S)
        for _ in range(3):
            time.sleep(2 * EACH_S)
            client.request("GET", "/health")
            client.getresponse().read()
        idle_since = time.monotonic()
        assert client.sock is not None and client.sock.recv(1) == b"", "closed, and nothing said"
        assert LIMIT_S - 0.1 <= time.monotonic() - idle_since < LATE_S

        with socket.create_connection(("127.0.0.1", moved.port), timeout=LATE_S) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
            began = time.monotonic()
            assert b" 408 " in slow.recv(1 << 12)
            assert LIMIT_S - 0.1 <= time.monotonic() - began < LATE_S


def test_an_end_waits_for_running_requests(clock: WallClock, moved: Server) -> None:
    """The last test of the server: it stops it."""
    with clock.jumping(), ThreadPoolExecutor() as pool:
        running = pool.submit(stream, moved, max_tokens=800)
        while moved.metric("num_requests_running") == 0 and not running.done():
            time.sleep(0.01)
        assert moved.stop() == 0
        assert running.result(timeout=LATE_S)[1] == "length"
