"""Log-probabilities in both schemas, of outputs and of prompts; speculation changes no bit of them."""

import math
from typing import Any

import pytest
from openai import OpenAI

from support import MODEL, STORY, Asker, Server, user

OFF = {"volley": {"speculation": False}}


def test_chat_schema(ask: Asker) -> None:
    answer = ask.chat(STORY, max_tokens=30, logprobs=True, top_logprobs=4)
    entries = answer.choices[0].logprobs
    assert len(entries) == answer.usage.completion_tokens
    assert "".join(entry["token"] for entry in entries).startswith(answer.text)
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(top) == 4 and top == sorted(top, reverse=True)
        # Greedy: the chosen token is the likeliest one.
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0
        assert sum(map(math.exp, top)) <= 1 + 1e-4


def test_chat_without_alternatives(ask: Asker) -> None:
    entries = ask.chat(STORY, max_tokens=5, logprobs=True).choices[0].logprobs
    assert len(entries) == 5 and all(entry["top_logprobs"] == [] for entry in entries)


def test_completion_schema(ask: Asker) -> None:
    answer = ask.complete("The dog", max_tokens=12, logprobs=3, extra_body={"ignore_eos": True})
    entries = answer.choices[0].logprobs
    assert len(entries) == 12
    position = 0
    for token, logprob, top, offset in entries:
        assert offset == position
        position += len(token)
        assert 1 <= len(top) <= 4 and top[token] == logprob == max(top.values())


def test_streams_and_whole_answers_agree(client: OpenAI) -> None:
    whole, streamed = (
        Asker(client, stream).chat(STORY, temperature=1, seed=3, max_tokens=40, logprobs=True, top_logprobs=2)
        for stream in (False, True)
    )
    assert whole.choices[0].logprobs == streamed.choices[0].logprobs


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "seed": 6}])
def test_speculation_changes_no_bit(ask: Asker, sampling: dict[str, Any]) -> None:
    fields = {"max_tokens": 60, "logprobs": True, "top_logprobs": 5, **sampling}
    fast, plain = ask.chat(STORY, **fields), ask.chat(STORY, extra_body=OFF, **fields)
    assert fast.choices[0].logprobs == plain.choices[0].logprobs


def test_sampling_does_not_change_what_is_reported(ask: Asker) -> None:
    """They are the model's own, before temperature, filters, penalties and bias."""
    fields = {"max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    plain = ask.chat(STORY, **fields).choices[0].logprobs[0]["top_logprobs"]
    biased = ask.chat(STORY, temperature=1.7, seed=1, top_p=0.5, logit_bias={"5": 50}, **fields)
    assert biased.choices[0].logprobs[0]["top_logprobs"] == plain


def test_echo_gives_those_of_the_prompt(ask: Asker, server: Server) -> None:
    prompt = "The brave dog found a ladder"
    answer = ask.complete(prompt, max_tokens=4, echo=True, logprobs=2, extra_body={"ignore_eos": True})
    assert answer.text.startswith(prompt)
    entries = answer.choices[0].logprobs
    assert len(entries) == len(server.tokenize(prompt)) + 4
    first, *rest = entries
    assert first[1] is None and first[2] is None, "nothing precedes the first token"
    assert all(logprob <= 0 for _, logprob, _, _ in rest)
    assert "".join(token for token, *_ in entries) == answer.text
    assert [offset for *_, offset in entries] == [
        sum(len(token) for token, *_ in entries[:i]) for i in range(len(entries))
    ]
    # Again, when the prompt is in the cache: they are computed, not looked up.
    again = ask.complete(prompt, max_tokens=4, echo=True, logprobs=2, extra_body={"ignore_eos": True})
    assert again.choices[0].logprobs == entries


def test_prompt_logprobs(client: OpenAI) -> None:
    """vLLM's field: a list with one entry a prompt token, the first null, others by token id."""
    answers = [
        client.chat.completions.create(
            model=MODEL, messages=user(STORY), temperature=0, max_tokens=2, extra_body={"prompt_logprobs": 2}
        )
        for _ in range(2)
    ]
    entries = answers[0].model_extra["prompt_logprobs"]
    assert len(entries) == answers[0].usage.prompt_tokens
    assert entries[0] is None
    for entry in entries[1:]:
        assert 2 <= len(entry) <= 3
        # The rank of a prompt token outside of the two likeliest is not known.
        assert sorted(value["rank"] for value in entry.values() if value["rank"]) == [1, 2]
        assert all(value["rank"] for value in entry.values()) or len(entry) == 3
        assert all(value["logprob"] <= 0 and isinstance(value["decoded_token"], str) for value in entry.values())
    assert answers[1].model_extra["prompt_logprobs"] == entries
    assert answers[1].usage.prompt_tokens_details.cached_tokens == 0
