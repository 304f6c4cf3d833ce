"""Stop strings on the whole server: random stops on random prompts cut the same text, streamed or not, with speculation
or without, and never a character in two."""

import asyncio
import json
import os
import random

from openai import AsyncOpenAI

from support import MODEL, Server, user

CASES = int(os.environ.get("VOLLEY_STOP_CASES", "200"))
PROMPTS = [
    "Tell me a story about a dog and a ladder.",
    "Who are you?",
    "In Python, write a function that adds 15 to every number in a list.",
    "Give me JSON for: Bela is 15 years old and lives in Nairobi.",
    "Ava paints 6 tiles each hour for 8 hours. The goal is 214 tiles. How many tiles are left?",
]
# The pocket model writes ASCII only. At a high temperature its bytes are any bytes: whole characters, halves, nonsense.
WILD = {"temperature": 8.0, "extra_body": {"ignore_eos": True}}


class Case:
    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.fields = {
            "model": MODEL,
            "messages": user(self.random.choice(PROMPTS)),
            "seed": number,
            "max_tokens": self.random.randint(10, 70),
            "temperature": self.random.choice([0.0, 0.7, 1.3]),
            "extra_body": {},
        }
        if number % 3 == 0:
            self.fields |= WILD

    def stops(self, text: str) -> list[str]:
        """One to four strings; most are cut out of the text, wherever tokens and blocks end in it."""
        stops = []
        for _ in range(self.random.randint(1, 4)):
            start = self.random.randrange(max(1, len(text)))
            stops.append(text[start : start + self.random.randint(1, 9)] or "nothing")
            if self.random.random() < 0.3:
                stops[-1] += self.random.choice(["~", "é"])  # nearly, and then not
        return stops


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop that is complete first; of those, the longest."""
    data = text.encode()
    found = [(data.find(s.encode()) + len(s.encode()), -len(s.encode())) for s in stops if s.encode() in data]
    if not found:
        return text, False
    end, length = min(found)
    return data[: end + length].decode(), True


async def whole(client: AsyncOpenAI, fields: dict) -> tuple[str, str]:
    answer = await client.chat.completions.create(**fields)
    return answer.choices[0].message.content, answer.choices[0].finish_reason


async def streamed(client: AsyncOpenAI, fields: dict) -> tuple[str, str]:
    """Reads the bytes itself: a client library would hide a character that is split between two chunks."""
    text, reason = "", ""
    async with client.chat.completions.with_streaming_response.create(**fields, stream=True) as response:
        data = b"".join([piece async for piece in response.iter_bytes()])
    for event in data.split(b"\n\n"):
        if not event or event == b"data: [DONE]":
            continue
        chunk = json.loads(event.removeprefix(b"data: ").decode("utf-8", errors="strict"))
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    return text, reason


async def run_case(client: AsyncOpenAI, number: int) -> int:
    case = Case(number)
    full, _ = await whole(client, case.fields)
    stops = case.stops(full)
    wanted, cut = expected(full, stops)
    plain = {**case.fields, "extra_body": {**case.fields["extra_body"], "volley": {"speculation": False}}}
    answers = [
        await whole(client, {**case.fields, "stop": stops}),
        await streamed(client, {**case.fields, "stop": stops}),
        await streamed(client, {**plain, "stop": stops}),
    ]
    for text, reason in answers:
        assert text == wanted, f"case {number}, stops {stops!r}"
        if cut:
            assert reason == "stop"
    return cut


def test_random_stops(server: Server) -> None:
    async def run() -> list[int]:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            limit = asyncio.Semaphore(8)

            async def one(number: int) -> int:
                async with limit:
                    return await run_case(client, number)

            return await asyncio.gather(*(one(i) for i in range(CASES)))

    cuts = asyncio.run(run())
    assert sum(cuts) > CASES / 2, "most stops must really cut"
