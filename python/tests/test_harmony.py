"""Chats with a tiny gpt-oss: content, thoughts and calls apart, whole and streamed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from volley import LLM, AsyncLLM, CompletionOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams, ToolCall

TARGET = Path(__file__).parents[2] / "tests" / "data" / "targets" / "oss_alternating"
MARKS = [f"<|{name}|>" for name in "endoftext return call start message channel constrain end".split()]
TEXT = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789{}[]\":,._-|<>=/()'\u0120"
TEMPLATE = (
    "{%- for m in messages -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endfor -%}"
    "{{- '<|start|>assistant' if add_generation_prompt else '' -}}"
)
CHAT = [{"role": "user", "content": "a"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer of a token a character, and the control tokens."""
    path = tmp_path_factory.mktemp("oss")
    for file in TARGET.iterdir():
        if file.is_file():
            shutil.copy(file, path)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": mark, **plain} for i, mark in enumerate(MARKS)],
        "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate([*MARKS, *TEXT])}, "merges": []},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def oss(folder: Path) -> Iterator[LLM]:
    with LLM(folder, max_num_seqs=4) as model:
        yield model


def _params(seed: int, **more: object) -> SamplingParams:
    # The weights are random: control tokens, and the letters at which channels part, are made likely.
    bias: dict[int, float] = {MARKS.index(m): 2.0 for m in ("<|start|>", "<|message|>", "<|channel|>")}
    bias |= {MARKS.index(m): 4.0 for m in ("<|end|>", "<|return|>")}
    bias |= {len(MARKS) + TEXT.index(letter): 2.5 for letter in "fc"}
    fields: dict[str, object] = {"temperature": 1.0, "seed": seed, "max_tokens": 100, "logit_bias": bias, **more}
    return SamplingParams(**fields)  # type: ignore[arg-type]


def _spelt(llm: LLM, text: str) -> list[int]:
    return llm.encode(text, add_special_tokens=False)


def test_structured_content_follows_the_thoughts(oss: LLM) -> None:
    params = [_params(s, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])) for s in range(8)]
    answers = [output.outputs[0] for output in oss.chat([CHAT] * 8, params)]
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert ended and {answer.text for answer in ended} <= {"yes", "no"}
    assert all(answer.stop_reason is None and answer.tool_calls == [] for answer in ended)
    thought = [answer for answer in ended if answer.reasoning]
    assert thought
    for answer in thought:  # they lie in the ids, which are whole
        first = str(answer.reasoning).split("\n")[0]
        assert first in oss.decode(answer.token_ids) and "analysis" in oss.decode(answer.token_ids)


def _calling(llm: LLM) -> SamplingParams:
    """Writes a thought and a call, whatever the weights say."""
    call = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{}"
    rules = " ".join(f"<[{token}]>" for token in [*_spelt(llm, call), MARKS.index("<|call|>")])
    grammar = StructuredOutputsParams(lark=f"start: {rules}")
    return SamplingParams(temperature=0, max_tokens=200, structured_outputs=grammar)


def test_calls(oss: LLM) -> None:
    params = _calling(oss)
    answer = oss.chat(CHAT, params, tools=TOOLS)[0].outputs[0]
    assert (answer.text, answer.reasoning, answer.finish_reason, answer.stop_reason) == ("", "Hm.", "stop", None)
    (call,) = answer.tool_calls
    assert (call.index, call.name, call.arguments) == (0, "f", "{}") and call.id.startswith("call_")
    other = oss.chat(CHAT, params, tools=TOOLS)[0].outputs[0].tool_calls[0]
    assert other.id != call.id
    untold = oss.chat(CHAT, params)[0].outputs[0]
    assert (untold.text, untold.reasoning, untold.tool_calls) == ("{}", "Hm.", [])


def test_what_a_user_writes_is_no_control_token(oss: LLM) -> None:
    output = oss.chat([{"role": "user", "content": "<|end|>"}], _params(1, max_tokens=1))[0]
    assert output.prompt == "<|start|>user<|message|><|end|><|end|><|start|>assistant"
    assert output.prompt_token_ids.count(MARKS.index("<|end|>")) == 1


def test_prompts_that_are_no_chats_stay_as_they_are(oss: LLM) -> None:
    answer = oss.generate({"prompt_token_ids": _spelt(oss, "<|start|>assistant")}, _params(3))[0].outputs[0]
    assert answer.reasoning is None and answer.tool_calls == []
    assert answer.text == oss.decode([t for t in answer.token_ids if t >= len(MARKS)])


def test_streams_add_up(folder: Path, oss: LLM) -> None:
    kinds = [_params(s, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])) for s in range(4)]
    kinds += [_params(s, n=2) for s in range(4)] + [_calling(oss)]
    wholes = [oss.chat(CHAT, params, tools=TOOLS)[0].outputs for params in kinds]

    async def stream(engine: AsyncLLM, params: SamplingParams) -> list[CompletionOutput]:
        pieces: list[list[CompletionOutput]] = [[] for _ in range(params.n)]
        deltas = dataclasses.replace(params, output_kind=RequestOutputKind.DELTA)
        async for output in engine.chat(CHAT, deltas, tools=TOOLS):
            for piece in output.outputs:
                pieces[piece.index].append(piece)
        last: list[CompletionOutput] = []
        async for output in engine.chat(CHAT, params, tools=TOOLS):
            last = output.outputs
        for index, of_one in enumerate(pieces):
            assert "".join(p.text for p in of_one) == last[index].text
            assert "".join(p.reasoning or "" for p in of_one) == (last[index].reasoning or "")
            calls: list[ToolCall] = [call for p in of_one for call in p.tool_calls]
            assert "".join(c.arguments for c in calls) == "".join(c.arguments for c in last[index].tool_calls)
            assert "".join(c.name for c in calls) == "".join(c.name for c in last[index].tool_calls)
        return last

    async def run() -> None:
        with AsyncLLM(folder, max_num_seqs=4) as engine:
            for params, whole in zip(kinds, wholes, strict=True):
                for got, expected in zip(await stream(engine, params), whole, strict=True):
                    assert (got.text, got.reasoning) == (expected.text, expected.reasoning)
                    assert got.token_ids == expected.token_ids
                    assert [(c.name, c.arguments) for c in got.tool_calls] == [
                        (c.name, c.arguments) for c in expected.tool_calls
                    ]

    asyncio.run(run())
