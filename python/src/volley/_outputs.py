"""What a request gave, in the shape that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import _engine


@dataclass(frozen=True)
class Logprob:
    logprob: float  #: log-softmax of the raw logits, before any processing
    rank: int | None  #: 1 is the likeliest; None: below the ones that were asked for
    decoded_token: str


@dataclass(frozen=True)
class RequestMetrics:
    """Seconds from the start of the request, and what speculation did for it."""

    queue_s: float
    ttft_s: float
    total_s: float
    drafted_tokens: int  #: proposed and verified
    accepted_tokens: int  #: of those, kept


@dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]  #: the stop token included
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None  #: by token id: the chosen token and the likeliest ones
    finish_reason: str  #: "stop" or "length"
    stop_reason: int | str | None  #: the stop token or string that ended it; None for the model's own end
    tokens_per_step: list[int]  #: tokens that each verify step gave, the bonus token included
    metrics: RequestMetrics


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None  #: None for a prompt of token ids
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None  #: None for the first token: nothing precedes it
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


def _position(position: _engine.PositionLogprobs, token_text: Callable[[int], str]) -> dict[int, Logprob]:
    entries = {}
    for rank, entry in enumerate(position.top, start=1):
        entries[entry.token] = Logprob(entry.logprob, rank, token_text(entry.token))
    chosen = position.chosen
    if chosen.token not in entries:
        entries[chosen.token] = Logprob(chosen.logprob, None, token_text(chosen.token))
    return entries


def _completion_output(
    completion: _engine.Completion, index: int, wants_logprobs: bool, eos: set[int], token_text: Callable[[int], str]
) -> CompletionOutput:
    positions = completion.logprobs
    stop: int | str | None = completion.stop_text
    if stop is None and completion.stop_token not in eos:
        stop = completion.stop_token
    usage = completion.usage
    return CompletionOutput(
        index=index,
        text=completion.text,
        token_ids=completion.tokens,
        cumulative_logprob=sum(p.chosen.logprob for p in positions) if wants_logprobs else None,
        logprobs=[_position(p, token_text) for p in positions] if wants_logprobs else None,
        finish_reason=completion.finish_reason,
        stop_reason=stop,
        tokens_per_step=completion.tokens_per_step,
        metrics=RequestMetrics(
            usage.queue_s, usage.ttft_s, usage.total_s, usage.drafted_tokens, usage.accepted_tokens
        ),
    )


def _prompt_logprobs(
    completion: _engine.Completion, token_text: Callable[[int], str]
) -> list[dict[int, Logprob] | None]:
    positions: list[dict[int, Logprob] | None] = [None]
    positions.extend(_position(p, token_text) for p in completion.prompt_logprobs)
    return positions
