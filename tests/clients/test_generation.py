"""Fields of both generation endpoints, streamed and not: what each of them does to the text."""

import asyncio

import pytest
from openai import OpenAI

from support import MODEL, SORT, STORY, Asker, Server, user

SORTED = "35, 49, 50, 79"


def test_chat(ask: Asker) -> None:
    answer = ask.chat(SORT)
    assert answer.text == SORTED
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")


def test_a_stream_comes_in_several_chunks(client: OpenAI) -> None:
    answer = Asker(client, stream=True).chat(STORY)
    assert answer.choices[0].chunks > 3
    assert answer.text == Asker(client, stream=False).chat(STORY).text


def test_content_as_parts_and_system_messages(ask: Asker) -> None:
    parts = [{"type": "text", "text": "Sort these numbers:"}, {"type": "text", "text": "50, 49, 35, 79."}]
    assert ask.chat([{"role": "user", "content": parts}]).text
    assert ask.chat([{"role": "system", "content": "Be brief."}, *user(SORT)]).text


def test_completion_prompts_in_every_form(ask: Asker, server: Server) -> None:
    text = "<|im_start|>user\n" + SORT + "<|im_end|>\n<|im_start|>assistant\n"
    ids = server.tokenize(text)
    assert ask.complete(text, max_tokens=40).text == SORTED
    assert ask.complete(ids, max_tokens=40).text == SORTED
    for prompts in ([text, text], [ids, ids]):
        answer = ask.complete(prompts, max_tokens=40)
        assert [choice.text for choice in answer.choices] == [SORTED, SORTED]
        assert answer.usage.prompt_tokens == 2 * len(ids)


def test_max_tokens(ask: Asker) -> None:
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        answer = ask.chat(STORY, **fields)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5
    assert ask.complete("The dog", max_tokens=3).usage.completion_tokens == 3
    assert ask.complete("The dog", extra_body={"ignore_eos": True}).usage.completion_tokens == 16  # OpenAI's default


def test_min_tokens_and_ignore_eos(ask: Asker) -> None:
    assert ask.chat(SORT).usage.completion_tokens < 30
    assert ask.chat(SORT, max_tokens=60, extra_body={"min_tokens": 30}).usage.completion_tokens >= 30
    answer = ask.chat(SORT, max_tokens=50, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 50
    assert answer.choices[0].finish_reason == "length"


def test_stop_strings(ask: Asker) -> None:
    full = ask.chat(STORY).text
    for stop in (["ladder"], "ladder", ["no such text", "r", "ladder"]):
        first = min(
            (full.find(s) + len(s), full.find(s)) for s in ([stop] if isinstance(stop, str) else stop) if s in full
        )
        answer = ask.chat(STORY, stop=stop)
        assert answer.text == full[: first[1]]
        assert answer.choices[0].finish_reason == "stop"
    kept = ask.chat(STORY, stop=["ladder"], extra_body={"include_stop_str_in_output": True})
    assert kept.text == full[: full.find("ladder")] + "ladder"


def test_stop_token_ids(ask: Asker, server: Server) -> None:
    full = ask.chat(SORT, logprobs=True)
    tokens = [entry["token"] for entry in full.choices[0].logprobs]
    stop = server.tokenize("50")[0]
    spelt = server.detokenize([stop])
    assert spelt in tokens
    answer = ask.chat(SORT, extra_body={"stop_token_ids": [stop]})
    assert answer.text == "".join(tokens[: tokens.index(spelt)])
    assert answer.choices[0].finish_reason == "stop"


def test_seeds(ask: Asker) -> None:
    sampled = [ask.chat(STORY, temperature=1, seed=seed, max_tokens=40).text for seed in (1, 1, 2, 3)]
    assert sampled[0] == sampled[1]
    assert len(set(sampled)) == 3


def test_streams_and_whole_answers_draw_the_same_sample(client: OpenAI) -> None:
    whole, streamed = (
        Asker(client, stream).chat(STORY, temperature=1.2, seed=5, top_p=0.95, n=2, max_tokens=60)
        for stream in (False, True)
    )
    assert [c.text for c in whole.choices] == [c.text for c in streamed.choices]
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens


def test_n(ask: Asker) -> None:
    answer = ask.chat(STORY, temperature=1, seed=4, n=3, max_tokens=30)
    assert len({choice.text for choice in answer.choices}) == 3
    alone = ask.chat(STORY, temperature=1, seed=4, max_tokens=30)
    assert alone.text == answer.choices[0].text
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens, "a prompt counts once"
    two = ask.complete(["A dog", "A cat"], temperature=1, seed=4, n=2, max_tokens=8, extra_body={"best_of": 2})
    assert len(two.choices) == 4


@pytest.mark.parametrize("fields", [{"top_p": 1e-6}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}])
def test_filters_that_leave_one_token_are_greedy(ask: Asker, fields: dict) -> None:
    assert ask.chat(STORY, temperature=1, seed=9, max_tokens=40, **fields).text == ask.chat(STORY, max_tokens=40).text


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 1.8}},
        {"temperature": 1.5, "seed": 1},
    ],
)
def test_penalties_and_temperature_change_the_text(ask: Asker, fields: dict) -> None:
    assert ask.chat(STORY, max_tokens=60, **fields).text != ask.chat(STORY, max_tokens=60).text


def test_logit_bias(ask: Asker, server: Server) -> None:
    token = server.tokenize("dog")[0]
    assert ask.chat(SORT, max_tokens=3, logit_bias={str(token): 100}).text == server.detokenize([token]) * 3
    first = ask.chat(SORT, max_tokens=1).text
    assert ask.chat(SORT, max_tokens=1, logit_bias={str(server.tokenize(first)[0]): -100}).text != first


def test_continue_final_message(ask: Asker) -> None:
    messages = [*user(SORT), {"role": "assistant", "content": "35, 49"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert ask.chat(messages, extra_body=fields).text == ", 50, 79"


def test_chat_template_kwargs(ask: Asker) -> None:
    assert ask.chat(SORT, extra_body={"chat_template_kwargs": {"enable_thinking": False}}).text == SORTED


def test_echo(ask: Asker) -> None:
    plain = ask.complete("The dog", max_tokens=8)
    echoed = ask.complete("The dog", max_tokens=8, echo=True)
    assert echoed.text == "The dog" + plain.text
    alone = ask.complete("The dog", max_tokens=0, echo=True)
    assert alone.text == "The dog"


def test_usage(ask: Asker) -> None:
    prompt = "Add these numbers one after the other: " + ", ".join(str(i) for i in range(40)) + "."
    first = ask.chat(prompt, max_tokens=30).usage
    again = ask.chat(prompt, max_tokens=30).usage
    assert first.total_tokens == first.prompt_tokens + first.completion_tokens
    assert again.prompt_tokens_details.cached_tokens > 0
    details = ask.chat(STORY).usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens >= 0


def test_speculation_is_invisible(ask: Asker) -> None:
    off = {"volley": {"speculation": False}}
    for fields in ({}, {"temperature": 1, "seed": 11}):
        plain = ask.chat(STORY, max_tokens=80, extra_body=off, **fields)
        fast = ask.chat(STORY, max_tokens=80, **fields)
        assert plain.text == fast.text
        assert plain.usage.completion_tokens == fast.usage.completion_tokens
        assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_tokens_per_step(client: OpenAI) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=user(STORY), temperature=0, extra_body={"volley": {"tokens_per_step": True}}
    )
    steps = response.choices[0].model_extra["volley"]["tokens_per_step"]
    assert sum(steps) == response.usage.completion_tokens - 1
    assert max(steps) > 1


def test_blocks_of_a_stream(client: OpenAI) -> None:
    drafted = accepted = tokens = 0
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=user(STORY),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"volley": {"blocks": True}},
    ):
        if block := (chunk.model_extra or {}).get("volley"):
            drafted += block.get("drafted", 0)
            accepted += block.get("accepted", 0)
            tokens += block.get("tokens", 0)
            assert len(block.get("pieces", [])) == block.get("tokens", 0)
        usage = chunk.usage
    assert tokens == usage.completion_tokens
    assert accepted == usage.completion_tokens_details.accepted_prediction_tokens
    assert drafted - accepted == usage.completion_tokens_details.rejected_prediction_tokens


def test_usage_in_every_chunk(client: OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = [
        chunk.usage.completion_tokens
        for chunk in client.chat.completions.create(
            model=MODEL, messages=user(STORY), temperature=0, stream=True, stream_options=options
        )
    ]
    assert seen == sorted(seen) and seen[-1] > seen[1]


def test_fields_of_other_servers_and_inert_ones_are_accepted(ask: Asker) -> None:
    extra = {"no_such_field": 1, "request_id": "abc"}
    assert ask.chat(SORT, user="u", metadata={"a": "b"}, service_tier="auto", extra_body=extra).text == SORTED


def test_many_at_once_answer_as_one_alone(server: Server) -> None:
    from openai import AsyncOpenAI

    prompts = [STORY, SORT, "Who are you?"] * 8

    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            calls = [
                client.chat.completions.create(model=MODEL, messages=user(p), temperature=1, seed=i % 3, max_tokens=40)
                for i, p in enumerate(prompts)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    together = asyncio.run(run())
    client = server.client()
    for i in range(6):
        alone = client.chat.completions.create(
            model=MODEL, messages=user(prompts[i]), temperature=1, seed=i % 3, max_tokens=40
        )
        assert together[i] == alone.choices[0].message.content
    assert together[:3] == together[3:6] == together[6:9]


def test_allowed_tokens_and_repetitions(ask: Asker, server: Server) -> None:
    (dog, *_) = server.tokenize(" dog")
    body = {"allowed_token_ids": [dog], "repetition_detection": {"max_pattern_size": 3, "min_count": 4}}
    answer = ask.complete("The", max_tokens=30, extra_body=body)
    assert answer.choices[0].finish_reason == "repetition"
    assert answer.usage.completion_tokens == 4
    assert len(set(server.tokenize("The" + answer.text)[-4:])) == 1


def test_bad_words_are_not_written(ask: Asker, server: Server) -> None:
    free = ask.chat(STORY, max_tokens=40).text
    word = next(word for word in free.split() if len(word) > 3 and word.isalpha())
    assert word not in ask.chat(STORY, max_tokens=40, extra_body={"bad_words": [word, " " + word]}).text.split()


def test_special_tokens_are_shown_when_asked_for(ask: Asker) -> None:
    body = {"ignore_eos": True, "skip_special_tokens": False}
    shown = ask.chat(SORT, max_tokens=40, extra_body=body).text
    hidden = ask.chat(SORT, max_tokens=40, extra_body={"ignore_eos": True}).text
    assert "<|im_end|>" in shown and "<|im_end|>" not in hidden
