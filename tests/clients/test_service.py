"""Everything around generation: models, tokens, probes, metrics, request ids, and an end that loses nothing."""

import json
import threading
import time

import openai
import pytest
from openai import OpenAI

from support import MODEL, SORT, STORY, Asker, Server, user


def test_models(client: OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    assert models[0].object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_tokens_there_and_back(server: Server) -> None:
    for text in ("Hello, world", "Köln 日本 🙂", " two  spaces\n"):
        answer = server.post_json("/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False})
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] > 0
        assert server.detokenize(answer["tokens"]) == text


def test_tokens_of_messages_are_those_that_chat_counts(server: Server, ask: Asker) -> None:
    answer = server.post_json("/tokenize", {"model": MODEL, "messages": user(SORT)})
    assert answer["count"] == ask.chat(SORT, max_tokens=1).usage.prompt_tokens


def test_metrics_count(server: Server, ask: Asker) -> None:
    before = server.metric("generation_tokens_total"), server.metric("prompt_tokens_total")
    usage = ask.chat(SORT).usage
    deadline = time.monotonic() + 120  # a step is counted behind its last piece, which the client has already
    while server.metric("generation_tokens_total") - before[0] < usage.completion_tokens:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.metric("generation_tokens_total") - before[0] == usage.completion_tokens
    assert server.metric("prompt_tokens_total") - before[1] == usage.prompt_tokens
    assert server.metric("spec_decode_num_accepted_tokens_total") > 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert server.metric(name + "_count") > 0


def test_a_client_that_goes_away_costs_nothing(server: Server) -> None:
    stream = server.client().chat.completions.create(
        model=MODEL, messages=user(STORY), max_tokens=1800, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    deadline = time.monotonic() + 120
    while server.metric("num_requests_running") < 1:  # counted behind the step whose piece the client has
        assert time.monotonic() < deadline
    stream.close()
    while server.metric("num_requests_running") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.metric("kv_cache_usage_perc") == 0


def test_prompts_are_not_logged_and_logs_are_json() -> None:
    secret = "Quarterly figures of Sycamore"
    with Server("--log-format json") as running:
        Asker(running.client(), stream=False).chat(secret, max_tokens=3)
        running.request("GET", "/v1/models", headers={"X-Request-Id": "trace-77"})
        assert running.stop() == 0
        log = running.log()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert lines and secret not in log
    assert any("trace-77" in json.dumps(line) for line in lines)


def test_sigterm_lets_running_answers_end() -> None:
    finishes: list[str | None] = []
    started = threading.Event()
    with Server() as running:
        client = running.client()
        fields = {"max_tokens": 400, "stream": True, "extra_body": {"ignore_eos": True}}

        def read() -> None:
            for chunk in client.chat.completions.create(model=MODEL, messages=user(STORY), **fields):
                finishes.append(chunk.choices[0].finish_reason)
                started.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(30)
        assert running.stop() == 0
        reader.join()
    assert finishes[-1] == "length"
