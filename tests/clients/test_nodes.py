"""An engine on two nodes, each a process: it answers as one process does, and nobody waits for a node that is gone."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import subprocess
import tempfile
import time
from types import TracebackType

import openai
import pytest

from support import MODEL, PROGRAM, ROOT, SORT, STORY, Server, own_port, user

OPTIONS = "--device cpu --threads 1 --max-num-seqs 8 --tensor-parallel-size 2 --verify full"


def place_at(port: socket.socket) -> str:
    return f" --nnodes 2 --master-addr 127.0.0.1 --master-port {port.getsockname()[1]}"


class Nodes:
    """Node 1, then node 0 with the server."""

    def __init__(self) -> None:
        self._port = own_port()
        place = place_at(self._port)
        self._log = tempfile.TemporaryFile(mode="w+")
        self.other = subprocess.Popen(
            [PROGRAM, "serve", *(OPTIONS + place).split(), "--node-rank", "1"],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache")},
        )
        try:
            self.first = Server(OPTIONS + place)
        except BaseException:
            self.other.kill()
            raise

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.first.__exit__()
        self.other.kill()
        self.other.wait()
        self._log.close()
        self._port.close()


def answer(server: Server, text: str, **options: object) -> str:
    chat = server.client().chat.completions.create(model=MODEL, messages=user(text), max_tokens=40, **options)
    return chat.choices[0].message.content


def stream_for_long(server: Server) -> str:
    """An error, of the stream or before it has begun, or "whole"."""
    try:
        stream = server.client().completions.create(
            model=MODEL, prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        for _ in stream:
            pass
    except openai.OpenAIError as error:
        return str(error)
    return "whole"


def test_answers_are_those_of_one_process_and_all_end_in_order() -> None:
    requests = [(SORT, {"temperature": 0}), (STORY, {"seed": 3}), (STORY, {"seed": 4, "frequency_penalty": 1})]
    with Server(OPTIONS) as alone:
        expected = [answer(alone, text, **options) for text, options in requests]
    with Nodes() as nodes:
        assert [answer(nodes.first, text, **options) for text, options in requests] == expected
        assert answer(nodes.first, SORT, response_format={"type": "json_object"}).lstrip().startswith("{")
        nodes.other.send_signal(signal.SIGTERM)  # as a service manager does that stops all of them
        assert answer(nodes.first, SORT, temperature=0) == expected[0]
        assert nodes.first.stop() == 0
        assert nodes.other.wait(timeout=60) == 0
        log = nodes.log()
        assert "computes for node 0" in log and "Node 0 has ended in order" in log


def test_a_node_that_is_killed_ends_every_request() -> None:
    with Nodes() as nodes, concurrent.futures.ThreadPoolExecutor(6) as pool:
        answer(nodes.first, SORT)
        streams = [pool.submit(stream_for_long, nodes.first) for _ in range(6)]
        while nodes.first.metric("num_requests_running") < 6 and not any(stream.done() for stream in streams):
            time.sleep(0.01)
        nodes.other.kill()
        killed = time.monotonic()
        ends = [stream.result(timeout=60) for stream in streams]
        assert time.monotonic() - killed < 5
        assert all("whole" not in end for end in ends), ends
        assert nodes.first.process.wait(timeout=60) == 4
        assert "is gone" in nodes.first.log()


def test_a_node_that_is_killed_while_nothing_runs_ends_the_server() -> None:
    with Nodes() as nodes:
        answer(nodes.first, SORT)
        nodes.other.kill()
        assert nodes.first.process.wait(timeout=60) == 4
        assert "Node 1 at 127.0.0.1" in nodes.first.log()


@pytest.mark.parametrize("busy", [False, True])
def test_the_others_end_with_the_first_node(busy: bool) -> None:
    with Nodes() as nodes, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer(nodes.first, SORT)
        if busy:
            stream = pool.submit(stream_for_long, nodes.first)
            while nodes.first.metric("num_requests_running") < 1 and not stream.done():
                time.sleep(0.01)
        nodes.first.process.kill()
        assert nodes.other.wait(timeout=60) == 4
        assert "Node 0 at 127.0.0.1" in nodes.log()
