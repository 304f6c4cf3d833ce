"""Volley under Ray Serve on this machine: one replica, two under load, and answers that are the server's own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve
from volley import LLM, SamplingParams
from volley.serve_ray import Settings, build_app

QUESTION = [{"role": "user", "content": "Sort these numbers: 50, 49, 35, 79."}]
STORY = [{"role": "user", "content": "Tell me a story about a dog and a ladder."}]
SETTINGS = {
    "options": "--threads 1 --max-num-seqs 4 --dtype float32 --verify full",
    "min_replicas": 1,
    "max_replicas": 2,
    "num_cpus": 0.1,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 600,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    # Bound, so that nobody else gets the port; it does not listen, so that Ray can.
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.bind(("127.0.0.1", 0))
    port = own.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: sockets' paths have an end
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, _temp_dir=folder)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_app(SETTINGS))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        own.close()


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, str], bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


def chat(url: str, messages: list[dict[str, str]], **fields: Any) -> Any:
    status, _, body = ask(url, "/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})
    assert status == 200, body
    return json.loads(body)


def server_behind(url: str) -> int:
    """The start of the server that answers, which tells one replica from another."""
    return int(json.loads(ask(url, "/v1/models")[2])["data"][0]["created"])


def replicas() -> int:
    states = serve.status().applications["default"].deployments["volley"].replica_states
    return {str(getattr(state, "value", state)): count for state, count in states.items()}.get("RUNNING", 0)


def test_answers_are_the_engines(url: str, llm: LLM) -> None:
    expected = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=30))[0].outputs[0].text
    assert chat(url, QUESTION, max_tokens=30)["choices"][0]["message"]["content"] == expected


def test_streams_arrive_in_pieces_and_whole(url: str) -> None:
    whole = chat(url, STORY, max_tokens=100)["choices"][0]["message"]["content"]
    fields = {"messages": STORY, "temperature": 0, "max_tokens": 100, "stream": True}
    status, headers, body = ask(url, "/v1/chat/completions", fields)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert len([piece for piece in pieces if piece]) > 1 and "".join(pieces) == whole


def test_errors_and_other_paths_are_passed_on(url: str) -> None:
    status, headers, body = ask(url, "/v1/chat/completions?x=1", {"messages": 5})
    assert status == 400 and "messages" in json.loads(body)["error"]["message"]
    assert headers["content-type"] == "application/json" and headers["x-request-id"]
    assert ask(url, "/nowhere")[0] == 404
    assert json.loads(ask(url, "/v1/models")[2])["data"][0]["id"] == "pocket"
    assert b"volley:num_requests_running" in ask(url, "/metrics")[2]


def test_a_client_that_leaves_cancels_its_request(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    body = json.dumps({"messages": STORY, "max_tokens": 1500, "stream": True, "ignore_eos": True, "volley": {"speculation": False}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        assert connection.recv(1000)
        assert json.loads(ask(url, "/load")[2])["server_load"] == 1
    deadline = time.monotonic() + 20
    while json.loads(ask(url, "/load")[2])["server_load"] > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_queue_adds_a_replica_and_both_answer_alike(url: str) -> None:
    assert replicas() == 1
    answers: list[Any] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answers.append(chat(url, STORY, max_tokens=200))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 90
    servers: set[int] = set()
    try:
        while len(servers) < 2:
            servers.add(server_behind(url))
            assert time.monotonic() < deadline, f"{replicas()} replicas after {len(answers)} answers"
            time.sleep(0.2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert replicas() == 2
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1


def test_settings_are_checked() -> None:
    assert Settings.of({"max_replicas": "3", "num_gpus": "1", "options": "--model x"}).max_replicas == 3
    with pytest.raises(ValueError, match="replica_count"):
        Settings.of({"replica_count": 2})
