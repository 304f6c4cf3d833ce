"""Errors as the client's own exceptions: the right class, the field, a sentence to act on."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from support import MODEL, SORT, STORY, Asker, Server, serving, user


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("n", 1000), ("stop", ["x"] * 17), ("functions", [{"name": "f"}]), ("stop_token_ids", [-1])],
)
def test_a_wrong_value_names_its_field(client: OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user(SORT), extra_body={field: value})
    assert caught.value.status_code == 400
    assert caught.value.param == field or field in caught.value.param
    assert caught.value.type == "invalid_request_error"
    assert field in caught.value.body["message"]


def test_unknown_model(ask: Asker) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask.chat(SORT, model="gpt-9")
    assert caught.value.code == "model_not_found"


def test_context_length(ask: Asker) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask.chat("word " * 4000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        ask.chat(SORT, max_tokens=100000)
    assert caught.value.code == "context_length_exceeded"


def test_paths_methods_and_bodies(server: Server) -> None:
    for method, path, body, status in [
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/chat/completions", None, 405),
        ("POST", "/v1/models", b"{}", 405),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b'{"messages": "\xff"}', 400),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/chat/completions", b"[" * 100000, 400),
    ]:
        got, headers, answer = server.request(method, path, body)
        assert got == status, (method, path, answer)
        error = json.loads(answer)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        assert headers["content-type"].startswith("application/json")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys and a short queue."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-of-the-file\n")
    options = f"--api-key-file {keys} --max-num-seqs 1 --max-queue 1"
    yield from serving(options, environment={"VOLLEY_API_KEYS": "key-one,key-two"})


@pytest.mark.parametrize("key", ["key-of-the-file", "key-one", "key-two"])
def test_keys_that_are_right(small: Server, key: str) -> None:
    client = small.client(api_key=key)
    assert client.models.list().data[0].id == MODEL
    assert Asker(client, stream=True).chat(SORT, max_tokens=3).text


@pytest.mark.parametrize("key", ["none", "key-on", "key-one2", "key-one,key-two"])
def test_keys_that_are_wrong(small: Server, key: str) -> None:
    client = small.client(api_key=key)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert key not in caught.value.body["message"]
    with pytest.raises(openai.AuthenticationError):
        Asker(client, stream=True).chat(SORT)
    assert "key-o" not in small.log()


def test_a_full_queue(small: Server) -> None:
    """One runs, one waits, the third is told to come back: 429 with Retry-After, which the client's own retry reads."""
    client = small.client(api_key="key-one")
    slowly = {"ignore_eos": True, "volley": {"speculation": False}}
    fields = {"model": MODEL, "max_tokens": 1900, "extra_body": slowly, "stream": True}
    running = client.chat.completions.create(messages=user(STORY), **fields)
    next(iter(running))
    # The stream of a request that waits has not begun: its answer's head is read in a thread of its own.
    waiting = threading.Thread(target=lambda: client.chat.completions.create(messages=user(SORT), **fields).close())
    waiting.start()
    deadline = time.monotonic() + 120
    while small.metric("num_requests_waiting") < 1:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=user(SORT), max_tokens=1)
    assert caught.value.status_code == 429
    assert int(caught.value.response.headers["retry-after"]) >= 1
    running.close()
    waiting.join()
    assert Asker(client, stream=False).chat(SORT).text, "with room again, the next one is served"


def test_a_key_file_that_is_missing() -> None:
    with pytest.raises(RuntimeError):
        Server("--api-key-file /nonexistent/keys")
