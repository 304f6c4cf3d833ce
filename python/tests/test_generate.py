"""Prompts in, texts out: values against the reference, every parameter that a user can give."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import volley
from volley import LLM, Prompt, SamplingParams, StructuredOutputsParams

REFERENCE = Path(__file__).parents[2] / "tests" / "data" / "dflash_reference_pocket.jsonl"
POCKET = Path(volley.__file__).parent / "share" / "volley" / "models" / "pocket"
GREEDY = SamplingParams(temperature=0, max_tokens=48)
STORY = [{"role": "user", "content": "Tell me a story about a fox and a bell."}]
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


def test_tokens_and_steps_are_those_of_the_published_loop(llm: LLM) -> None:
    rows = [json.loads(line) for line in REFERENCE.read_text().splitlines()[:24]]
    params = [SamplingParams(temperature=0, max_tokens=len(row["output_ids"])) for row in rows]
    prompts: list[list[int]] = [row["prompt_ids"] for row in rows]
    outputs = llm.generate(prompts, params)
    for row, output in zip(rows, outputs, strict=True):
        assert output.prompt is None
        assert output.prompt_token_ids == row["prompt_ids"]
        assert output.outputs[0].token_ids == row["output_ids"]
        assert sum(output.outputs[0].tokens_per_step) == len(row["output_ids"]) - 1


def test_every_form_of_prompt_gives_the_same(llm: LLM) -> None:
    text = "Count from 3 in steps of 4"
    ids = llm.encode(text)
    one = llm.generate(text, GREEDY)
    prompts: list[Prompt] = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}]
    forms = llm.generate(prompts, GREEDY)
    assert len(one) == 1 and len(forms) == 4
    assert llm.generate(ids, GREEDY)[0].outputs[0].text == one[0].outputs[0].text
    for output in forms:
        assert output.finished
        assert output.outputs[0].token_ids == one[0].outputs[0].token_ids
    assert llm.generate([], GREEDY) == []


def test_keys_of_a_prompts_mapping(llm: LLM) -> None:
    text = "The path behind the mill is narrow. " * 6
    llm.reset_prefix_cache()

    def cached(**keys: object) -> int:
        return llm.generate({"prompt": text, **keys}, GREEDY)[0].num_cached_tokens

    assert cached(cache_salt="a") == 0 and cached(cache_salt="b") == 0 and cached(multi_modal_data=None) == 0
    assert cached(cache_salt="a") > 0
    with pytest.raises(ValueError, match="multi_modal_data"):
        cached(multi_modal_data={"image": "x"})
    with pytest.raises(ValueError, match="cache_salt"):
        cached(cache_salt="")


def test_a_completion_keeps_the_space_that_a_decoder_strips(llm: LLM, tmp_path: Path) -> None:
    shutil.copytree(POCKET, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # as SentencePiece's
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"], strip]}
    file.write_text(json.dumps(tokenizer))
    spaced = llm.encode(" the", add_special_tokens=False)[:1]
    word = llm.decode(spaced)
    assert word.startswith(" ")
    params = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=spaced)
    with LLM(tmp_path / "model", dtype="float32", max_num_seqs=2) as stripping:
        assert stripping.generate("Where is", params)[0].outputs[0].text == word * 2
        assert stripping.chat(QUESTION, params)[0].outputs[0].text == (word * 2)[1:]


def test_chat_is_the_template_and_then_generate(llm: LLM) -> None:
    answer = llm.chat(QUESTION, GREEDY)[0]
    assert "42" in answer.outputs[0].text
    assert answer.outputs[0].finish_reason == "stop"
    assert answer.outputs[0].stop_reason is None
    text = llm.render_chat(QUESTION)
    assert answer.prompt == text
    ids = llm.encode(text, add_special_tokens=False)
    assert llm.generate({"prompt_token_ids": ids}, GREEDY)[0].outputs[0].text == answer.outputs[0].text
    both = llm.chat([QUESTION, QUESTION], GREEDY)
    assert [output.outputs[0].text for output in both] == [answer.outputs[0].text] * 2


def test_a_seed_gives_the_same_tokens_with_and_without_speculation(llm: LLM) -> None:
    sampled = SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_tokens=60)
    drafted = llm.chat([STORY, QUESTION], sampled)
    plain = llm.chat([STORY, QUESTION], dataclasses.replace(sampled, speculation=False))
    for a, b in zip(drafted, plain, strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids
        assert b.outputs[0].metrics.drafted_tokens == 0
    assert all(output.outputs[0].metrics.accepted_tokens > 0 for output in drafted)


def test_n_answers_differ(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=30)
    output = llm.chat(STORY, params)[0]
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({answer.text for answer in output.outputs}) == 3


def test_where_an_answer_ends(llm: LLM) -> None:
    plain = llm.chat(QUESTION, GREEDY)[0].outputs[0]
    at_text = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=48, stop="####"))[0].outputs[0]
    assert at_text.stop_reason == "####" and at_text.finish_reason == "stop"
    assert plain.text.startswith(at_text.text) and "####" not in at_text.text
    stop_id = plain.token_ids[3]
    at_token = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=48, stop_token_ids=[stop_id]))[0].outputs[0]
    assert at_token.stop_reason == stop_id
    assert at_token.token_ids[-1] == stop_id
    short = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=2))[0].outputs[0]
    assert short.finish_reason == "length" and len(short.token_ids) == 2
    assert len(llm.chat(QUESTION, SamplingParams(temperature=0))[0].outputs[0].token_ids) <= 16


def test_logprobs_are_of_the_chosen_and_the_likeliest(llm: LLM) -> None:
    output = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=8, logprobs=3))[0].outputs[0]
    assert output.logprobs is not None and output.cumulative_logprob is not None
    assert len(output.logprobs) == len(output.token_ids)
    for token, position in zip(output.token_ids, output.logprobs, strict=True):
        assert len(position) == 3
        assert position[token].rank == 1, "greedy takes the likeliest"
        assert position[token].decoded_token == llm.decode([token], skip_special_tokens=False)
        assert sum(math.exp(entry.logprob) for entry in position.values()) <= 1 + 1e-5
    chosen = sum(position[token].logprob for token, position in zip(output.token_ids, output.logprobs, strict=True))
    assert output.cumulative_logprob == pytest.approx(chosen)
    assert llm.chat(QUESTION, GREEDY)[0].outputs[0].logprobs is None


def test_prompt_logprobs(llm: LLM) -> None:
    output = llm.generate("One morning, a fox", SamplingParams(max_tokens=1, prompt_logprobs=2))[0]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    for token, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert position is not None and token in position


def test_structured_outputs(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "Write this as JSON: Ava is 31 years old and lives in Oslo."}]

    def ask(structure: StructuredOutputsParams) -> str:
        params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=structure)
        return llm.chat(messages, params)[0].outputs[0].text

    assert set(json.loads(ask(StructuredOutputsParams(json=schema)))) == {"name", "age"}
    assert ask(StructuredOutputsParams(choice=["yes", "no"])) in ("yes", "no")
    assert ask(StructuredOutputsParams(regex="[0-9]{3}")).isdigit()
    assert ask(StructuredOutputsParams(grammar='root ::= "a" "b"')) == "ab"
    assert isinstance(json.loads(ask(StructuredOutputsParams(json_object=True))), dict)
    with pytest.raises(ValueError, match="exactly one"):
        ask(StructuredOutputsParams(regex="a", choice=["b"]))


def test_the_prefix_cache_is_used_and_can_be_emptied(llm: LLM) -> None:
    prompt = "The fence around the garden is long. " * 6
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens > 0
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
