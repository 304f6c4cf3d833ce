"""The engine's counters as a list of metrics, in the shape that vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from . import _engine


@dataclass(frozen=True)
class Counter:
    """Only grows."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """Counters by position."""

    name: str
    values: list[int]
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gauge:
    """As of now."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


Metric: TypeAlias = "Counter | Vector | Gauge"


def _kv_usage(stats: _engine.EngineStats) -> float:
    """What requests hold, of the layers that have fewest pages left."""
    groups = [(stats.pages_used, stats.pages_cached, stats.pages_total)]
    groups += [(group.used, group.cached, group.total) for group in stats.page_groups]
    return max((used - cached) / total if total else 0.0 for used, cached, total in groups)


def metrics_of(stats: _engine.EngineStats) -> list[Metric]:
    drafts = stats.drafted_at[0] if stats.drafted_at else 0
    return [
        Gauge("volley:num_requests_running", stats.requests_running),
        Gauge("volley:num_requests_waiting", stats.requests_waiting),
        Gauge("volley:kv_cache_usage_perc", _kv_usage(stats)),
        Counter("volley:num_requests_finished", stats.requests_finished),
        Counter("volley:num_requests_cancelled", stats.requests_cancelled),
        Counter("volley:num_requests_failed", stats.requests_failed),
        Counter("volley:num_preemptions", stats.preemptions),
        Counter("volley:prompt_tokens", stats.prompt_tokens),
        Counter("volley:generation_tokens", stats.generated_tokens),
        Counter("volley:prefix_cache_queries", stats.prompt_tokens),
        Counter("volley:prefix_cache_hits", stats.cached_tokens),
        Counter("volley:engine_steps", stats.steps),
        Counter("volley:spec_decode_num_drafts", drafts),
        Counter("volley:spec_decode_num_draft_tokens", stats.drafted_tokens),
        Counter("volley:spec_decode_num_accepted_tokens", stats.accepted_tokens),
        Vector("volley:spec_decode_num_accepted_tokens_per_pos", stats.accepted_at),
        Vector("volley:spec_decode_num_draft_tokens_per_pos", stats.drafted_at),
    ]
