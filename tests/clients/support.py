"""A `volley serve` process for tests, and answers in one shape whether they were streamed or not."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("VOLLEY_PROGRAM", ROOT / "build/cpu/bin/volley"))
MODEL = "pocket"

SORT = "Sort these numbers: 50, 49, 35, 79."  # greedy: "35, 49, 50, 79"
STORY = "Tell me a story about a dog and a ladder."  # several sentences
JSON_FACTS = "Give me JSON for: Bela is 15 years old and lives in Nairobi."


def own_port() -> socket.socket:
    """Bound to a port that nobody else gets as long as this is open. It does not listen: a server of this test may."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.bind(("127.0.0.1", 0))
    return own


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def turns(messages: str | list[Any]) -> list[Any]:
    """A conversation; a text alone is the user's."""
    return user(messages) if isinstance(messages, str) else messages


class Server:
    """The program with the pocket models, on a free port unless one is given."""

    def __init__(self, options: str = "", environment: dict[str, str] | None = None, port: int = 0) -> None:
        self._log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            # A slow machine is no failure.
            [PROGRAM, "serve", "--port", str(port), "--grammar-mask-timeout-ms", "3600000", *shlex.split(options)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache"), **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        if not found:
            self.process.kill()
            raise RuntimeError(f"volley did not start: {line!r} {self.log()}")
        self.url = found.group()

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **options: Any) -> OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        return OpenAI(base_url=self.url + "/v1", **options)

    def request(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body; errors are answers too."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})
        if data is not None and not request.has_header("Content-type"):
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()
        except urllib.error.HTTPError as error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()

    def get_json(self, path: str) -> Any:
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post_json(self, path: str, body: dict[str, Any]) -> Any:
        status, _, answer = self.request("POST", path, body)
        assert status == 200, answer
        return json.loads(answer)

    def tokenize(self, text: str) -> list[int]:
        return self.post_json("/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False})["tokens"]

    def detokenize(self, tokens: list[int]) -> str:
        return self.post_json("/detokenize", {"model": MODEL, "tokens": tokens})["prompt"]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels; `name` without its prefix, as in "num_requests_running"."""
        _, _, body = self.request("GET", "/metrics")
        values = re.findall(rf"^volley:{name}(?:{{[^}}]*}})? (\S+)$", body.decode(), re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def idle(self) -> bool:
        """Whether no request runs or waits, and no page is taken."""
        return not any(map(self.metric, ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """The most that was resident since forget_peak()."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024

    def log(self) -> str:
        # The process writes where the file's position is: reading must not move it.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode()

    def stop(self) -> int:
        """Drains it; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        """It does not outlive its test, whatever happens in it."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()


def serving(*args: Any, idle: bool = False, **options: Any) -> Iterator[Server]:
    """A fixture's server, which must end with 0; `idle`: and have nothing left to do before."""
    with Server(*args, **options) as running:
        yield running
        assert not idle or running.idle()
        assert running.stop() == 0


@dataclass
class ToolCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Choice:
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    # chat: entries of "content"; completions: the four lists, joined.
    logprobs: list[Any] = field(default_factory=list)
    chunks: int = 0  # with text, of a stream


@dataclass
class Answer:
    choices: list[Choice]
    usage: Any
    id: str

    @property
    def text(self) -> str:
        assert len(self.choices) == 1
        return self.choices[0].text


@dataclass
class Asker:
    """Sends the same request streamed or not, and gives the answer in the same shape."""

    client: OpenAI
    stream: bool

    def chat(self, messages: str | list[Any], **fields: Any) -> Answer:
        fields = {"model": MODEL, "messages": turns(messages), "temperature": 0, **fields}
        create = self.client.chat.completions.create
        return _chat_stream(create, fields) if self.stream else _chat_whole(create(**fields))

    def complete(self, prompt: Any, **fields: Any) -> Answer:
        fields = {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}
        create = self.client.completions.create
        return _completion_stream(create, fields) if self.stream else _completion_whole(create(**fields))


def _choice(choices: dict[int, Choice], index: int) -> Choice:
    return choices.setdefault(index, Choice())


def _in_order(choices: dict[int, Choice]) -> list[Choice]:
    assert sorted(choices) == list(range(len(choices)))
    return [choices[i] for i in range(len(choices))]


def _chat_whole(response: Any) -> Answer:
    assert response.object == "chat.completion"
    choices: dict[int, Choice] = {}
    for part in response.choices:
        assert part.message.role == "assistant"
        choice = _choice(choices, part.index)
        choice.text = part.message.content or ""
        choice.reasoning = getattr(part.message, "reasoning_content", None) or ""
        choice.finish_reason = part.finish_reason
        for call in part.message.tool_calls or []:
            assert call.type == "function"
            choice.tool_calls.append(ToolCall(call.id, call.function.name, call.function.arguments))
        if part.logprobs:
            choice.logprobs = [entry.model_dump() for entry in part.logprobs.content]
    return Answer(_in_order(choices), response.usage, response.id)


def _chat_stream(create: Any, fields: dict[str, Any]) -> Answer:
    options = {"include_usage": True, **fields.pop("stream_options", {})}
    choices: dict[int, Choice] = {}
    usage, ids, roles = None, set(), set()
    for chunk in create(**fields, stream=True, stream_options=options):
        assert chunk.object == "chat.completion.chunk"
        assert usage is None or options.get("continuous_usage_stats"), "a chunk after the one with the usage"
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for part in chunk.choices:
            choice = _choice(choices, part.index)
            assert choice.finish_reason is None, "a chunk after the last one of its choice"
            if part.delta.role:
                assert part.index not in roles
                roles.add(part.index)
            choice.text += part.delta.content or ""
            choice.chunks += bool(part.delta.content)
            choice.reasoning += getattr(part.delta, "reasoning_content", None) or ""
            for call in part.delta.tool_calls or []:
                _add_call(choice, call)
            if part.logprobs:
                choice.logprobs += [entry.model_dump() for entry in part.logprobs.content]
            choice.finish_reason = part.finish_reason
    assert len(ids) == 1 and len(roles) == len(choices)
    return Answer(_in_order(choices), usage, ids.pop())


def _add_call(choice: Choice, call: Any) -> None:
    if call.id:
        assert call.index == len(choice.tool_calls) and call.type == "function" and call.function.name
        choice.tool_calls.append(ToolCall(call.id, call.function.name))
    else:
        assert call.index == len(choice.tool_calls) - 1 and not call.function.name
    choice.tool_calls[call.index].arguments += call.function.arguments or ""


def _completion_logprobs(logprobs: Any) -> list[Any]:
    if not logprobs:
        return []
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    assert len({len(entries) for entries in lists}) == 1
    return list(zip(*lists))


def _completion_whole(response: Any) -> Answer:
    assert response.object == "text_completion"
    choices: dict[int, Choice] = {}
    for part in response.choices:
        choice = _choice(choices, part.index)
        choice.text, choice.finish_reason = part.text, part.finish_reason
        choice.logprobs = _completion_logprobs(part.logprobs)
    return Answer(_in_order(choices), response.usage, response.id)


def _completion_stream(create: Any, fields: dict[str, Any]) -> Answer:
    choices: dict[int, Choice] = {}
    usage, ids = None, set()
    for chunk in create(**fields, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "text_completion" and usage is None
        ids.add(chunk.id)
        usage = chunk.usage
        for part in chunk.choices:
            choice = _choice(choices, part.index)
            assert choice.finish_reason is None
            choice.text += part.text
            choice.chunks += bool(part.text)
            choice.logprobs += _completion_logprobs(part.logprobs)
            choice.finish_reason = part.finish_reason
    assert len(ids) == 1
    return Answer(_in_order(choices), usage, ids.pop())
