"""sglang-router with its cache-aware policy before two servers, which know nothing of it."""

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from support import MODEL, ROOT, STORY, Asker, Server, own_port, user

OPTIONS = "--threads 1 --max-num-seqs 8 --verify full"
TOPICS = [
    "Ada keeps seven grey geese near the old mill.",
    "My bicycle has a flat tyre and a broken bell.",
    "Which soups can I cook with leeks and potatoes?",
    "Write to the bank about the lost blue card.",
    "Count the stations from Lima to the coast.",
    "The violin of the neighbour sounds too loud.",
]
NEXT = ["Go on.", "And what happened after that?"]


class Router:
    """The router's process, once it knows its workers."""

    def __init__(self, workers: list[str], *options: str) -> None:
        self._ports = [own_port(), own_port()]
        port, metrics_port = (str(own.getsockname()[1]) for own in self._ports)
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile(mode="w+")
        fixed = {
            "--host": "127.0.0.1",
            "--port": port,
            "--prometheus-port": metrics_port,
            "--health-check-interval-secs": "1",
            "--health-failure-threshold": "1",
            "--health-success-threshold": "1",
        }
        words = [word for option in fixed.items() for word in option]
        command = [sys.executable, "-m", "sglang_router.launch_router", *words, *options, "--worker-urls", *workers]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=ROOT / "build")
        try:
            self.wait(lambda: len(self.healthy()) == len(workers))
        except BaseException:
            self.close()
            raise

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.loads(answer.read())

    def workers(self) -> list[dict[str, Any]]:
        try:
            return self.get("/workers")["workers"]
        except OSError:  # it does not listen yet
            return []

    def healthy(self) -> set[str]:
        return {worker["url"] for worker in self.workers() if worker["is_healthy"]}

    def wait(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError(f"the router did not come so far: {self._log.read()[-4000:]}")
            time.sleep(0.1)

    def client(self) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()
        for own in self._ports:
            own.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Server]]:
    with Server(OPTIONS) as first, Server(OPTIONS) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def router(workers: list[Server]) -> Iterator[Router]:
    # The least share of a text that must have been sent to a server for the rest to follow: answers were not sent.
    started = Router([worker.url for worker in workers], "--policy", "cache_aware", "--cache-threshold", "0.05")
    yield started
    started.close()


def named() -> dict[str, str]:
    """A header that names a request, for the log of the server that gets it."""
    return {"X-Request-Id": f"r-{uuid.uuid4()}"}


def server_of(answer: Any, servers: list[Server]) -> int:
    """The place of its server in the list. A server may log a request after its answer."""
    deadline = time.monotonic() + 60
    while True:
        for place, server in enumerate(servers):
            if f" id={answer._request_id} " in server.log():
                return place
        assert time.monotonic() < deadline, "no server has the request"
        time.sleep(0.01)


def converse(client: OpenAI, topic: str) -> list[Any]:
    messages = user(topic)
    answers = []
    for question in [*NEXT, None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=40, extra_headers=named()
        )
        answers.append(answer)
        messages = [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]
        messages += user(question) if question else []
    return answers


def test_it_learns_what_the_servers_are(router: Router, workers: list[Server]) -> None:
    assert {worker["url"] for worker in router.workers()} == {worker.url for worker in workers}
    assert {worker["model_id"] for worker in router.workers()} == {MODEL}
    assert {model["id"] for model in router.get("/v1/models")["data"]} == {MODEL}


def test_it_reads_their_load(router: Router, workers: list[Server]) -> None:
    assert sorted(entry["load"] for entry in router.get("/get_loads")["workers"]) == [0, 0]
    fields = {"max_tokens": 1500, "stream": True, "extra_body": {"ignore_eos": True, "volley": {"speculation": False}}}
    with workers[0].client().chat.completions.create(model=MODEL, messages=user(STORY), **fields) as stream:
        next(iter(stream))
        loads = {entry["worker"]: entry["load"] for entry in router.get("/get_loads")["workers"]}
        prompt = workers[0].post_json("/tokenize", {"model": MODEL, "messages": user(STORY)})["count"]
        assert loads[workers[0].url] > prompt and loads[workers[1].url] == 0


def test_answers_and_streams_are_the_servers(router: Router, server: Server) -> None:
    for stream in (False, True):
        ours, theirs = (Asker(client, stream).chat(STORY, max_tokens=60) for client in (server.client(), router.client()))
        assert theirs.text == ours.text and theirs.choices[0].finish_reason == ours.choices[0].finish_reason
        assert theirs.usage.completion_tokens == ours.usage.completion_tokens
    complete = [Asker(client, False).complete("Once", max_tokens=20).text for client in (server.client(), router.client())]
    assert complete[0] == complete[1]


def test_conversations_stay_where_their_cache_is(router: Router, workers: list[Server], server: Server) -> None:
    """Both servers have work, and every conversation finds as much in the cache as it does on a server of its own."""
    alone = [converse(server.client(), topic) for topic in TOPICS]
    with ThreadPoolExecutor(len(TOPICS)) as pool:
        routed = list(pool.map(lambda topic: converse(router.client(), topic), TOPICS))
    homes = Counter()
    for ours, theirs in zip(alone, routed):
        (home,) = {server_of(answer, workers) for answer in theirs}
        homes[home] += 1
        for own, routed_answer in zip(ours, theirs):
            assert routed_answer.choices[0].message.content == own.choices[0].message.content
            cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (own, routed_answer)]
            assert cached[0] == cached[1]
        assert theirs[-1].usage.prompt_tokens_details.cached_tokens > theirs[0].usage.prompt_tokens // 2
    assert len(homes) == 2, f"one server has all conversations: {homes}"


def test_a_server_that_goes_loses_no_new_request() -> None:
    """First one is drained while it answers, then it comes back, then the other one is killed."""
    own = own_port()
    port = own.getsockname()[1]
    with own, Server(OPTIONS, port=port) as first, Server(OPTIONS) as second:
        router = Router([first.url, second.url], "--policy", "round_robin", "--cb-timeout-duration-secs", "1")
        try:
            client = router.client()
            servers = [first, second]

            def ask(tokens: int = 8) -> int:
                answer = client.chat.completions.create(
                    model=MODEL,
                    messages=user(STORY),
                    temperature=0,
                    max_tokens=tokens,
                    extra_body={"ignore_eos": True},
                    extra_headers=named(),
                )
                assert answer.usage.completion_tokens == tokens
                return server_of(answer, servers)

            assert len({ask() for _ in range(4)}) == 2
            with ThreadPoolExecutor(2) as pool:
                running = [pool.submit(ask, 1500) for _ in range(2)]  # one on each
                deadline = time.monotonic() + 60
                while min(worker.get_json("/load")["server_load"] for worker in (first, second)) < 1:
                    assert time.monotonic() < deadline and not any(answer.done() for answer in running)
                    time.sleep(0.01)
                first.process.send_signal(signal.SIGTERM)
                assert {ask() for _ in range(10)} == {1}
                assert len({answer.result() for answer in running}) == 2, "what ran has ended as asked for"
            assert first.process.wait(60) == 0
            with Server(OPTIONS, port=port) as again:
                servers.append(again)
                # It may take the router a second to trust it again.
                router.wait(lambda: again.url in router.healthy() and len({ask() for _ in range(4)}) == 2)
                second.process.kill()
                assert {ask() for _ in range(10)} == {2}
        finally:
            router.close()
