"""An endpoint with OpenAI's API, through OpenAI's client: what it serves, and one timed request."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import openai

from .errors import SuiteError
from .journal import Answer

_CHAT_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Settings:
    """Fields of every request."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int = 2048  # where the sample has none of its own
    force_max_tokens: bool = False  # max_tokens over the sample's own
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    client: openai.AsyncOpenAI
    model: str
    owner: str  # who the list of models says owns it: "volley", "vllm", …
    timeout_s: float  # of one answer, from its request to its end

    @property
    def is_volley(self) -> bool:
        return self.owner == "volley"

    @property
    def knows_cache_salt(self) -> bool:
        return self.owner in ("volley", "vllm")


def base_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise SuiteError(f"{url} is not the address of a server: give http://HOST:PORT.")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else base + "/v1"


async def probe(url: str, model: str | None, api_key: str, timeout_s: float, connections: int) -> Endpoint:
    """Asks the endpoint for its models. SuiteError if there is none, or not that one."""
    # The library's client, with as many connections as requests will be open.
    limits = openai.DefaultAsyncHttpxClient(
        limits=_limits(connections), timeout=timeout_s, follow_redirects=True
    )
    client = openai.AsyncOpenAI(
        base_url=base_url(url), api_key=api_key, max_retries=0, timeout=timeout_s, http_client=limits
    )
    try:
        models = (await client.models.list()).data
    except openai.OpenAIError as error:
        await client.close()
        raise SuiteError(f"{base_url(url)}/models does not answer: {error}.") from error
    for entry in models:
        if model is None or entry.id == model:
            return Endpoint(client, entry.id, entry.owned_by, timeout_s)
    await client.close()
    what = f"does not list the model {model}" if model else "lists no model"
    raise SuiteError(f"{base_url(url)}/models {what}.")


def _limits(connections: int) -> Any:
    try:
        import httpx2 as httpx
    except ImportError:  # older releases of the client
        import httpx  # type: ignore[no-redef,import-not-found,unused-ignore]
    return httpx.Limits(max_connections=None, max_keepalive_connections=connections)


@dataclass(frozen=True)
class Question:
    """One request."""

    messages: list[dict[str, Any]]
    prompt: str | None  # not None: /v1/completions
    max_tokens: int | None
    ignore_eos: bool
    stop: tuple[str, ...]
    mode: str
    seed_offset: int  # added to the seed, so that samples differ
    cache_salt: str


def fields_of(endpoint: Endpoint, question: Question, settings: Settings) -> dict[str, Any]:
    """Arguments of the client's create()."""
    extra: dict[str, Any] = {}
    if settings.top_k is not None:
        extra["top_k"] = settings.top_k
    if question.ignore_eos:
        extra["ignore_eos"] = True
    if endpoint.knows_cache_salt:
        extra["cache_salt"] = question.cache_salt
    if endpoint.is_volley:
        extra["volley"] = {"tokens_per_step": True}
        if question.mode in ("off", "on"):
            extra["volley"]["speculation"] = question.mode == "on"
    tokens = settings.max_tokens
    if question.max_tokens is not None and not settings.force_max_tokens:
        tokens = question.max_tokens
    fields: dict[str, Any] = {"model": endpoint.model, "temperature": settings.temperature, "max_tokens": tokens}
    if settings.top_p is not None:
        fields["top_p"] = settings.top_p
    if settings.seed is not None:
        fields["seed"] = (settings.seed + question.seed_offset) & 0x7FFFFFFFFFFFFFFF
    if question.stop:
        fields["stop"] = list(question.stop[:4])  # OpenAI's limit
    if question.prompt is None:
        fields["messages"] = question.messages
    else:
        fields["prompt"] = question.prompt
    return {**fields, **_CHAT_STREAM, "extra_body": {**extra, **settings.extra_body}}


async def ask(endpoint: Endpoint, question: Question, settings: Settings, answer: Answer) -> None:
    """Fills in `answer`; what goes wrong is its error."""
    fields = fields_of(endpoint, question, settings)
    create: Any = endpoint.client.chat.completions.with_streaming_response.create
    if question.prompt is not None:
        create = endpoint.client.completions.with_streaming_response.create
    stream = _Stream(answer)
    begin = time.perf_counter()
    try:
        # Lines as they are: making the client's objects of each token costs as much as small models take for it.
        # The client's own timeout begins again with each piece that comes.
        async with asyncio.timeout(endpoint.timeout_s), create(**fields) as response:
            async for line in response.iter_lines():
                stream.take(line, time.perf_counter() - begin)
    except (TimeoutError, openai.APITimeoutError):
        answer.error = f"no whole answer within {endpoint.timeout_s:g} s (--timeout)"
    except openai.APIStatusError as error:
        answer.error = f"HTTP {error.status_code}: {error.message}"
    except Exception as error:  # the transport's own classes are not in the client's interface
        answer.error = f"{type(error).__name__}: {error}"
    answer.end_s = time.perf_counter() - begin
    if not answer.error:
        stream.end()


class _Stream:
    """Server-sent events of either API into an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._usage = self._done = False

    def take(self, line: str, now: float) -> None:
        if not line.startswith("data:"):
            return
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event that is no JSON object")
        if event.get("error"):
            error = event["error"]
            self._answer.error = str(error.get("message", error) if isinstance(error, dict) else error)
        for choice in event.get("choices") or []:
            self._choice(choice, now)
        self._steps(event)
        if isinstance(event.get("usage"), dict):
            self._count(event["usage"])

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        answer = self._answer
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        # Servers send the one, the other, or both with the same text.
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        if text or reasoning:
            if answer.ttft_s is None:
                answer.ttft_s = now
            else:
                answer.gaps_s.append(now - answer.last_s)
            answer.last_s = now
            answer.text += text
            answer.reasoning += reasoning
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        self._steps(choice)

    def _steps(self, holder: dict[str, Any]) -> None:
        steps = (holder.get("volley") or {}).get("tokens_per_step")
        if isinstance(steps, list):
            self._answer.steps = steps

    def _count(self, usage: dict[str, Any]) -> None:
        self._usage = True
        answer = self._answer
        answer.prompt_tokens = usage.get("prompt_tokens") or 0
        answer.completion_tokens = usage.get("completion_tokens") or 0
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        details = usage.get("completion_tokens_details") or {}
        answer.accepted_tokens = details.get("accepted_prediction_tokens")
        answer.rejected_tokens = details.get("rejected_prediction_tokens")

    def end(self) -> None:
        if not self._done:
            self._answer.error = "the stream ended without its [DONE]"
        elif not self._usage:
            self._answer.error = "the endpoint sent no usage (stream_options.include_usage), so tokens cannot be counted"
