"""Pictures through the official clients of OpenAI and Anthropic and through LangChain: the model reads the same prompt
whoever sends it. And what is refused: files that only look like pictures, and hosts that are not public."""

import base64
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from support import ROOT, Server, serving

SEES = "qwen3_vl"
WHAT = "What?"
CALL = "c1"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG file whose header says `width` and `height`, whatever `rows` are."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def noise(seed: int, width: int = 24, height: int = 16) -> bytes:
    """Six tokens of the fixture."""
    draw = random.Random(seed)
    return png(width, height, b"".join(b"\0" + draw.randbytes(3 * width) for _ in range(height)))


def data_url(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()


def part(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(file), "detail": "auto"}}


def item(file: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(file), "detail": "auto"}


def block(file: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(file).decode()}
    return {"type": "image", "source": source}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("files")
    options = f"--files-dir {folder} --allow-image-hosts localhost,pictures.invalid"
    yield from serving(f"--model {ROOT}/tests/data/seen/{SEES} --spec off --max-num-seqs 4 {options}")


@pytest.fixture
def openai_client(seeing: Server) -> openai.OpenAI:
    return seeing.client()


@pytest.fixture
def messages_client(seeing: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0, timeout=120)


def chat(client: openai.OpenAI, content: Any, **fields: Any) -> Any:
    fields = {"model": SEES, "max_tokens": 16, "temperature": 0, **fields}
    return client.chat.completions.create(messages=[{"role": "user", "content": content}], **fields)


def test_every_client_shows_the_same_picture(
    seeing: Server, openai_client: openai.OpenAI, messages_client: anthropic.Anthropic, tmp_path: Path
) -> None:
    file, text = noise(1), {"type": "text", "text": WHAT}
    whole = chat(openai_client, [part(file), text])
    answer = whole.choices[0].message.content
    assert answer and chat(openai_client, [part(noise(2)), text]).choices[0].message.content != answer
    assert chat(openai_client, WHAT).usage.prompt_tokens + 8 == whole.usage.prompt_tokens  # with begin and end

    stream = chat(openai_client, [part(file), text], stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream) == answer

    (tmp_path / "a.png").write_bytes(file)
    kept = openai_client.files.create(file=tmp_path / "a.png", purpose="user_data")
    shown = {"type": "input_image", "file_id": kept.id, "detail": "auto"}
    for image in (item(file), shown):
        response = openai_client.responses.create(
            model=SEES, input=[{"role": "user", "content": [image, {"type": "input_text", "text": WHAT}]}],
            max_output_tokens=16, temperature=0,
        )  # fmt: skip
        assert response.output_text == answer
    again = openai_client.responses.input_items.list(response.id).data[0].content[0]
    assert again.file_id == kept.id

    message = messages_client.messages.create(
        model=SEES, max_tokens=16, messages=[{"role": "user", "content": [block(file), text]}],
        extra_body={"temperature": 0},
    )  # fmt: skip
    assert "".join(piece.text for piece in message.content) == answer

    for responses in (False, True):
        langchain = ChatOpenAI(
            model=SEES, base_url=seeing.url + "/v1", api_key="none", temperature=0, max_tokens=16, max_retries=0,
            use_responses_api=responses,
        )  # fmt: skip
        assert langchain.invoke([HumanMessage([part(file), text])]).text == answer
        assert "".join(piece.text for piece in langchain.stream([HumanMessage([part(file), text])])) == answer


def test_results_of_tools_show_pictures(openai_client: openai.OpenAI, messages_client: anthropic.Anthropic) -> None:
    answers = []
    for file in map(noise, (1, 2, 4)):
        calls = [{"id": CALL, "type": "function", "function": {"name": "shot", "arguments": "{}"}}]
        turns = [
            {"role": "user", "content": WHAT},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": CALL, "content": [part(file)]},
        ]
        whole = openai_client.chat.completions.create(model=SEES, messages=turns, max_tokens=16, temperature=0)
        response = openai_client.responses.create(
            model=SEES, max_output_tokens=16, temperature=0,
            input=[
                {"role": "user", "content": WHAT},
                {"type": "function_call", "call_id": CALL, "name": "shot", "arguments": "{}"},
                {"type": "function_call_output", "call_id": CALL, "output": [item(file)]},
            ],
        )  # fmt: skip
        message = messages_client.messages.create(
            model=SEES, max_tokens=16, extra_body={"temperature": 0},
            messages=[
                {"role": "user", "content": WHAT},
                {"role": "assistant", "content": [{"type": "tool_use", "id": CALL, "name": "shot", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL, "content": [block(file)]}]},
            ],
        )  # fmt: skip
        answers.append(whole.choices[0].message.content)
        assert response.output_text == answers[-1] == "".join(piece.text for piece in message.content)
    assert len(set(answers)) > 1


def test_a_second_turn_finds_its_picture(seeing: Server, openai_client: openai.OpenAI) -> None:
    made, hits = seeing.metric("pictures_total"), seeing.metric("picture_cache_hits_total")
    for text in ("Who?", "Where?"):
        chat(openai_client, [part(noise(3)), {"type": "text", "text": text}], n=2)
    assert seeing.metric("pictures_total") == made + 1
    assert seeing.metric("picture_cache_hits_total") > hits
    assert seeing.metric("vision_seconds_total") > 0
    assert seeing.get_json("/v1/models")["data"][0]["modalities"] == ["text", "image"]


# A few KiB that would be hundreds of MiB, and headers that lie: a sentence each, and soon.
BOMBS = {
    "a PNG of 64 MP whose rows are missing": png(8000, 8000, b"\0" * 100),
    "a PNG of 16000 x 16000": png(16000, 16000, b""),
    "a PNG whose rows go on": png(8, 8, b"\0" * (256 << 20)),
    "a cut PNG": noise(1)[:200],
    "a JPEG of 65535 x 65535": bytes.fromhex("ffd8ffc0001108ffffffff03011100021100031100ffd9"),
    "a GIF of 16384 x 3900": b"GIF89a" + bytes.fromhex("00403c0f8000000000000000002c0000000000403c0f0002012c003b"),
    "a GIF of 65535 x 65535": b"GIF89a\xff\xff\xff\xff\x80\x00\x00" + b"\0" * 6 + b";",
    "a WebP whose size lies": b"RIFF\xff\xff\xff\x7fWEBPVP8L\xff\xff\xff\x7f\x2f\xff\xff\xff\x0f" + b"\0" * 64,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_sentences(seeing: Server, openai_client: openai.OpenAI, name: str) -> None:
    before = seeing.resident_bytes()
    seeing.forget_peak()
    try:
        chat(openai_client, [part(BOMBS[name])])
        assert name == "a PNG whose rows go on"  # nobody reads them
    except openai.BadRequestError as refused:
        assert "messages[0].content[0]: the picture" in str(refused)
    assert seeing.peak_bytes() < before + (512 << 20)


def test_sixteen_large_pictures_are_made_small(seeing: Server, openai_client: openai.OpenAI) -> None:
    file = png(8000, 8000, b"\0" * (8000 * 1001), 1, 0)  # black; 64 million pixels in 8 KiB
    before = seeing.resident_bytes()
    seeing.forget_peak()
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        chat(openai_client, [part(file)] * 16)
    assert chat(openai_client, [part(file)]).usage.prompt_tokens > 64
    assert seeing.peak_bytes() < before + (1 << 30)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://localhost/a.png", "the name stands for an address that is not public"),
        ("https://127.0.0.1/a.png", "fetches no pictures from 127.0.0.1"),
        ("https://169.254.169.254/latest", "fetches no pictures from 169.254.169.254"),
        ("https://elsewhere.invalid/a.png", "fetches no pictures from elsewhere.invalid"),
        ("https://pictures.invalid/a.png", "could not be fetched"),
        ("http://localhost/a.png", "must begin with"),
        ("file:///etc/passwd", "must begin with"),
    ],
)
def test_urls_reach_public_hosts_alone(openai_client: openai.OpenAI, url: str, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError, match=sentence):
        chat(openai_client, [{"type": "image_url", "image_url": {"url": url}}])
