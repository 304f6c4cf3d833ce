"""Streams, the async engine, and what both leave behind."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from volley import (
    LLM,
    AsyncLLM,
    InvalidArgumentError,
    RequestOutput,
    RequestOutputKind,
    ResourceExhaustedError,
    SamplingParams,
    _outputs,
)

STORY = "Tell me a story about a fox and a bell."
CHAT = [{"role": "user", "content": STORY}]
GREEDY = SamplingParams(temperature=0, max_tokens=60)
DELTA = SamplingParams(temperature=0, max_tokens=60, logprobs=1, output_kind=RequestOutputKind.DELTA)
ENDLESS = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    with AsyncLLM(dtype="float32", max_num_seqs=4) as model:
        yield model


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def _quiet(llm: LLM | AsyncLLM) -> bool:
    return _eventually(lambda: llm.stats().requests_running + llm.stats().requests_waiting == 0)


def _joined(outputs: list[RequestOutput]) -> tuple[str, list[int]]:
    return ("".join(o.outputs[0].text for o in outputs), [t for o in outputs for t in o.outputs[0].token_ids])


def test_a_stream_adds_up_to_the_answer(llm: LLM) -> None:
    whole = llm.chat(CHAT, GREEDY)[0].outputs[0]
    prompt = llm.encode(llm.render_chat(CHAT), add_special_tokens=False)
    deltas = list(llm.stream(prompt, DELTA))
    assert len(deltas) > 3 and _joined(deltas) == (whole.text, whole.token_ids)
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[0].outputs[0].finish_reason is None and not deltas[0].outputs[0].finished()
    last = deltas[-1].outputs[0]
    assert last.finish_reason == whole.finish_reason and sum(last.tokens_per_step) == len(whole.token_ids) - 1
    assert all(len(o.outputs[0].logprobs or []) == len(o.outputs[0].token_ids) for o in deltas)
    cumulative = list(llm.stream(prompt, GREEDY))
    assert cumulative[-1].outputs[0].token_ids == whole.token_ids
    for before, after in zip(cumulative, cumulative[1:], strict=False):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
    final = list(llm.stream(prompt, dataclasses.replace(GREEDY, output_kind=RequestOutputKind.FINAL_ONLY)))
    assert len(final) == 1 and final[0].outputs[0].text == whole.text


def test_each_position_of_a_stream_is_read_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    one = _outputs._position

    def count(position: Any, token_text: Any) -> Any:
        nonlocal read
        read += 1
        return one(position, token_text)

    monkeypatch.setattr(_outputs, "_position", count)
    outputs = list(llm.stream(STORY, dataclasses.replace(GREEDY, logprobs=1, ignore_eos=True)))
    answers = [output.outputs[0] for output in outputs]
    assert len(answers) > 3 and read == len(answers[-1].token_ids)
    for answer in answers:
        assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids), "as it was handed out"
        chosen = sum(entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True))
        assert answer.cumulative_logprob == pytest.approx(chosen)


def test_leaving_a_stream_cancels_it(llm: LLM) -> None:
    stream = llm.stream(STORY, ENDLESS)
    next(stream)
    cancelled = llm.stats().requests_cancelled
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert _eventually(lambda: llm.stats().requests_cancelled == cancelled + 1) and _quiet(llm)


def test_requests_of_a_loop_run_together(engine: AsyncLLM, llm: LLM) -> None:
    prompts = [f"Count from {i} in steps of 3" for i in range(12)]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    most_open = 0

    async def ask(prompt: str) -> list[int]:
        nonlocal most_open
        pieces = []
        async for output in engine.generate(prompt, DELTA):
            most_open = max(most_open, engine.stats().requests_running)
            pieces.append(output)
        return _joined(pieces)[1]

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(ask(prompt) for prompt in prompts))

    assert asyncio.run(run()) == expected
    assert most_open > 1
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(run())


def test_several_answers_an_error_and_an_abort() -> None:
    async def run(engine: AsyncLLM) -> None:
        params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=30)
        async for output in engine.chat(CHAT, params, "three"):
            last = output
        assert last.finished and last.request_id == "three"
        assert len({answer.text for answer in last.outputs}) == 3
        with pytest.raises(InvalidArgumentError, match="logit_bias"):
            async for _ in engine.generate("x", SamplingParams(logit_bias={99999: 1.0})):
                pass

        begun = asyncio.Event()

        async def read() -> RequestOutput:
            async for output in engine.generate(STORY, ENDLESS, "long"):
                latest = output
                begun.set()
            return latest

        reader = asyncio.create_task(read())
        await begun.wait()
        with pytest.raises(ValueError, match="still runs"):
            async for _ in engine.generate("x", GREEDY, "long"):
                pass
        await engine.abort("nobody")
        await engine.abort("long")
        ended = await reader
        assert ended.outputs[0].finish_reason == "cancelled" and len(ended.outputs[0].token_ids) < 1500
        # A task that is cancelled, and a loop that is left.
        begun.clear()
        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        async for _ in engine.generate(STORY, ENDLESS, "long"):
            break
        async for output in engine.chat([{"role": "user", "content": "What is 12 + 30?"}], GREEDY):
            last = output
        assert "42" in last.outputs[0].text

    with AsyncLLM(dtype="float32", max_num_seqs=4) as engine:
        asyncio.run(run(engine))
        assert _quiet(engine)


def test_a_queue_without_a_bound_and_with_one() -> None:
    async def ask(engine: AsyncLLM, count: int) -> int:
        async def one() -> int:
            outputs = [output async for output in engine.generate([5], SamplingParams(max_tokens=1))]
            return len(outputs[-1].outputs[0].token_ids)

        return sum(await asyncio.gather(*(one() for _ in range(count))))

    with AsyncLLM(max_num_seqs=64, speculation=False) as engine:
        assert asyncio.run(ask(engine, 4200)) == 4200
    with AsyncLLM(max_num_seqs=1, max_queue=1) as engine, pytest.raises(ResourceExhaustedError, match="queue"):
        asyncio.run(ask(engine, 50))


def test_shutdown_ends_what_runs() -> None:
    async def run() -> RequestOutput:
        engine = AsyncLLM(dtype="float32", max_num_seqs=2)
        latest = None
        async for output in engine.generate(STORY, dataclasses.replace(ENDLESS, logprobs=1)):
            if latest is None:
                engine.shutdown()
            latest = output
        assert latest is not None
        with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
            async for _ in engine.generate(STORY, GREEDY):
                pass
        return latest

    assert asyncio.run(asyncio.wait_for(run(), 60)).outputs[0].finish_reason == "cancelled"
