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
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("n", 0),
        ("n", 1000),
        ("max_tokens", 0),
        ("seed", "x"),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("top_logprobs", 50),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 1000}),
        ("stream_options", {"include_usage": True}),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("stop_token_ids", [-1]),
        ("min_tokens", -1),
    ],
)
def test_a_wrong_value_names_its_field(client: OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user(SORT), extra_body={field: value})
    assert caught.value.status_code == 400
    assert caught.value.param == field or field in caught.value.param
    assert caught.value.type == "invalid_request_error"
    assert field in caught.value.body["message"]


@pytest.mark.parametrize("field", ["audio", "suffix", "functions", "prompt_embeds", "use_beam_search"])
def test_what_is_not_built_is_refused_by_name(client: OpenAI, field: str) -> None:
    values = {"suffix": "x", "use_beam_search": True, "functions": [{"name": "f"}]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=user(SORT), extra_body={field: values.get(field, {"a": 1})}
        )
    assert caught.value.param == field


@pytest.mark.parametrize(
    "messages",
    [[], "text", [{}], [{"role": "pirate", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 7}]],
)
def test_wrong_messages(client: OpenAI, messages: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("prompt", [[], [[]], 7, [1, "a"], [99999], [None]])
def test_wrong_prompts(client: OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=prompt)
    assert caught.value.param == "prompt"


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


def test_a_wrong_content_type(server: Server) -> None:
    status, _, _ = server.request(
        "POST", "/v1/completions", b"prompt=x", {"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert status == 415


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys and tight limits."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-of-the-file\n")
    limits = "--max-num-seqs 1 --max-queue 1 --max-body-bytes 20000 --max-n 4 --request-timeout 20"
    options = f"--api-key-file {keys} --cors-origin https://example.org {limits}"
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


def test_probes_and_metrics_under_keys(small: Server) -> None:
    for path in ("/health", "/ready"):
        assert small.request("GET", path)[0] == 200
    assert small.request("GET", "/v1/models")[0] == 401


def test_a_body_that_is_too_large(small: Server) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        small.client(api_key="key-one").chat.completions.create(model=MODEL, messages=user("x" * 30000))
    assert caught.value.status_code == 413


def test_cross_origin_requests(small: Server) -> None:
    preflight = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    status, headers, _ = small.request("OPTIONS", "/v1/chat/completions", headers=preflight)
    assert status in (200, 204)
    assert headers["access-control-allow-origin"] == "https://example.org"
    assert "authorization" in headers["access-control-allow-headers"].lower()
    _, headers, _ = small.request("GET", "/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in headers


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
