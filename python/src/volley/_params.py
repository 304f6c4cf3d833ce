"""What a request asks for. Names and defaults are those that vLLM's users know."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _engine


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What the text must be. Exactly one field may be given."""

    json: str | Mapping[str, Any] | None = None  #: a JSON schema
    regex: str | None = None  #: the whole text matches it
    choice: Sequence[str] | None = None  #: the text is one of these
    grammar: str | None = None  #: GBNF, its rule is `root`
    lark: str | None = None  #: llguidance's Lark dialect, its rule is `start`
    json_object: bool | None = None  #: any JSON object

    def _grammar(self) -> _engine.Grammar:
        kinds = _engine.Grammar.Kind
        schema = self.json if isinstance(self.json, str | None) else json_module.dumps(self.json)
        texts = [
            (kinds.JSON_SCHEMA, schema),
            (kinds.REGEX, self.regex),
            (kinds.EBNF, self.grammar),
            (kinds.LARK, self.lark),
            (kinds.CHOICE, None if self.choice is None else ""),
            (kinds.JSON_OBJECT, "" if self.json_object else None),
        ]
        given = [(kind, text) for kind, text in texts if text is not None]
        if len(given) != 1:
            raise ValueError(
                "StructuredOutputsParams takes exactly one of json, regex, choice, grammar, lark and json_object=True"
            )
        grammar = _engine.Grammar()
        grammar.kind, grammar.text = given[0]
        grammar.choices = list(self.choice or [])
        return grammar


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends. The engine checks the ranges when the request starts."""

    n: int = 1  #: answers to each prompt
    temperature: float = 1.0  #: 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  #: 0 or -1: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None  #: the same seed gives the same tokens, whatever else runs; None: drawn for each answer
    max_tokens: int | None = 16  #: None: as many as fit into the context
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None  #: the text ends before the first of these
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  #: the chosen token's and the k highest of each position, at most 20
    prompt_logprobs: int | None = None  #: the same for the prompt
    structured_outputs: StructuredOutputsParams | None = None
    speculation: bool = True  #: False decodes plainly: the tokens are the same, only later

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n is {self.n}: ask for at least one answer")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}: it must be at least 1, or None")

    def _sampling(self, choice: int) -> _engine.Sampling:
        sampling = _engine.Sampling()
        sampling.temperature = self.temperature
        sampling.top_p = self.top_p
        sampling.top_k = self.top_k
        sampling.min_p = self.min_p
        sampling.repetition_penalty = self.repetition_penalty
        sampling.presence_penalty = self.presence_penalty
        sampling.frequency_penalty = self.frequency_penalty
        sampling.logit_bias = list((self.logit_bias or {}).items())
        sampling.seed = self.seed
        sampling.choice_index = choice
        sampling.logprobs = -1 if self.logprobs is None else self.logprobs
        return sampling

    def _request(self, prompt: Sequence[int], choice: int) -> _engine.Request:
        request = _engine.Request()
        request.prompt = list(prompt)
        request.shares_prompt = self.n > 1
        request.sampling = self._sampling(choice)
        request.max_tokens = -1 if self.max_tokens is None else self.max_tokens
        request.min_tokens = self.min_tokens
        request.ignore_eos = self.ignore_eos
        request.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        request.stop_token_ids = list(self.stop_token_ids or [])
        if self.prompt_logprobs is not None and choice == 0:
            request.prompt_logprobs = self.prompt_logprobs
        if self.structured_outputs is not None:
            request.grammar = self.structured_outputs._grammar()
        request.speculation = self.speculation
        return request
