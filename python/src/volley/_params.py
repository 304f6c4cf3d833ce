"""What a request asks for. Names and defaults are those that vLLM's users know."""

from __future__ import annotations

import enum
import json as json_module
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from . import _engine
from ._checks import Number, flag, texts, token_ids
from ._prompts import Prepared

_MOST = 2**31 - 1  # the engine's whole numbers
_ONE_OF = "StructuredOutputsParams takes exactly one of json, regex, choice, grammar, lark and json_object=True"


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What the text must be. Exactly one field may be given."""

    json: str | Mapping[str, Any] | None = None  #: a JSON schema
    regex: str | None = None  #: the whole text matches it
    choice: Sequence[str] | None = None  #: the text is one of these
    grammar: str | None = None  #: GBNF, its rule is `root`
    lark: str | None = None  #: llguidance's Lark dialect, its rule is `start`
    json_object: bool | None = None  #: any JSON object
    structural_tag: Any = None  #: not supported: use grammar or lark
    disable_any_whitespace: bool | None = None  #: False: any white space in JSON; else at most a space or a line break
    disable_additional_properties: bool = False  #: not supported: say additionalProperties in the schema
    whitespace_pattern: str | None = None  #: not supported

    def __post_init__(self) -> None:
        given = [name for name in ("json", "regex", "choice", "grammar", "lark") if getattr(self, name) is not None]
        if len(given) + (self.json_object is True) != 1:
            raise ValueError(_ONE_OF)
        for name in ("regex", "grammar", "lark"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be a text")
        if self.choice is not None:
            texts("choice", self.choice)
            if not self.choice:
                raise ValueError("choice is empty: name at least one text")
        self._check_json()
        flag("json_object", self.json_object, optional=True)
        flag("disable_any_whitespace", self.disable_any_whitespace, optional=True)
        if self.structural_tag is not None:
            raise ValueError("structural_tag is not supported: use grammar or lark")
        if self.disable_additional_properties:
            raise ValueError("disable_additional_properties is not supported: say additionalProperties in the schema")
        if self.whitespace_pattern is not None:
            raise ValueError("whitespace_pattern is not supported: use grammar or lark")

    def _check_json(self) -> None:
        if not isinstance(self.json, str | Mapping | bool | None):
            raise ValueError(f"json is a {type(self.json).__name__}: it must be a JSON schema, as a text or a dict")
        try:
            if isinstance(self.json, str):
                json_module.loads(self.json)
            elif self.json is not None:
                json_module.dumps(self.json)
        except (ValueError, TypeError) as error:
            raise ValueError(f"json is no JSON schema: {error}") from None

    def _schema(self) -> str | None:
        if self.disable_any_whitespace is not False or (self.json is None and not self.json_object):
            return self.json if isinstance(self.json, str | None) else json_module.dumps(self.json)
        schema = json_module.loads(self.json) if isinstance(self.json, str) else self.json
        if schema is None:
            schema = {"type": "object"}
        return json_module.dumps({**schema, "x-guidance": {"whitespace_flexible": True}})

    def _grammar(self) -> _engine.Grammar:
        kinds = _engine.Grammar.Kind
        schema = self._schema()
        sources = [
            (kinds.JSON_SCHEMA, schema),
            (kinds.REGEX, self.regex),
            (kinds.EBNF, self.grammar),
            (kinds.LARK, self.lark),
            (kinds.CHOICE, None if self.choice is None else ""),
            (kinds.JSON_OBJECT, "" if self.json_object and schema is None else None),
        ]
        grammar = _engine.Grammar()
        grammar.kind, grammar.text = next((kind, text) for kind, text in sources if text is not None)
        grammar.choices = list(self.choice or [])
        return grammar


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  #: everything so far
    DELTA = 1  #: what is new
    FINAL_ONLY = 2  #: one output, at the end


@dataclass(frozen=True, kw_only=True)
class RepetitionDetectionParams:
    """Ends an answer whose last tokens are one pattern again and again."""

    max_pattern_size: int = 0  #: 0: off
    min_pattern_size: int = 0
    min_count: int = 0  #: times in a row, at least 2

    def __post_init__(self) -> None:
        for name, low in (("max_pattern_size", 0), ("min_pattern_size", 0), ("min_count", 0)):
            Number(low, _MOST, whole=True).check(f"repetition_detection.{name}", getattr(self, name))
        if self.max_pattern_size == 0:
            return
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("repetition_detection: min_pattern_size must not be above max_pattern_size")
        if self.min_count < 2:
            raise ValueError("repetition_detection: min_count must be at least 2: a pattern repeats from then on")


# As the engine takes them (src/engine/run/validation.cc), which checks them once more.
_NUMBERS = {
    "n": Number(1, _MOST, whole=True),
    "best_of": Number(1, _MOST, whole=True, optional=True),
    "temperature": Number(0, 100),
    "top_p": Number(0, 1, above=True),
    "top_k": Number(-1, _MOST, whole=True),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(0.01, 100),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "seed": Number(-(2**63), 2**64 - 1, whole=True, optional=True),
    "max_tokens": Number(1, _MOST, whole=True, optional=True),
    "min_tokens": Number(0, _MOST, whole=True),
    "thinking_token_budget": Number(0, _MOST, whole=True, optional=True),
    "logprobs": Number(0, 20, whole=True, optional=True),
    "prompt_logprobs": Number(0, 20, whole=True, optional=True),
    "truncate_prompt_tokens": Number(-1, _MOST, whole=True, optional=True),
}
_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "speculation",
)

# What is taken for the sake of code written for vLLM, as long as it asks for nothing; and what to do instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "logits_processors": (None, "use logit_bias, bad_words, allowed_token_ids or structured_outputs"),
    "guided_decoding": (None, "use structured_outputs"),
    "logprob_token_ids": (None, "logprobs has the likeliest tokens of each position"),
    "flat_logprobs": (False, "logprobs is a list with a dict for each position"),
    "extra_args": (None, "there are no others"),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingParams:
    """How a request's tokens are chosen and when it ends. A value that cannot be is a ValueError that names its field."""

    n: int = 1  #: answers to each prompt
    best_of: int | None = None  #: must equal n
    temperature: float = 1.0  #: 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  #: 0 or -1: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None  #: these alone, ids that end the answer included
    bad_words: Sequence[str] | None = None  #: the output never holds one of these, after a space or not
    seed: int | None = None  #: the same seed gives the same tokens, whatever else runs; None, -1: drawn for each answer
    max_tokens: int | None = 16  #: None: as many as fit into the context
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None  #: the text ends before the first of these
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None  #: of models that think between the tokens <think> and </think>
    logprobs: int | None = None  #: the chosen token's and the k highest of each position, at most 20
    prompt_logprobs: int | None = None  #: the same for the prompt
    detokenize: bool = True  #: False: texts are empty
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True  #: means nothing here: the tokenizer's decoder decides on spaces
    truncate_prompt_tokens: int | None = None  #: only the last so many tokens of the prompt; -1: what fits
    skip_reading_prefix_cache: bool | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE  #: of streams
    structured_outputs: StructuredOutputsParams | None = None
    speculation: bool = True  #: False decodes plainly: the tokens are the same, only later
    # Not supported:
    logits_processors: Any = None
    guided_decoding: Any = None
    logprob_token_ids: Any = None
    flat_logprobs: bool = False
    extra_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, number in _NUMBERS.items():
            number.check(name, getattr(self, name))
        for name in _FLAGS:
            flag(name, getattr(self, name))
        flag("skip_reading_prefix_cache", self.skip_reading_prefix_cache, optional=True)
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError(f"best_of is {self.best_of} and n is {self.n}: best_of is not supported unless it equals n")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, above max_tokens, which is {self.max_tokens}")
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens is 0: it must be -1, for what fits, or at least 1")
        self._check_lists()
        if not self.detokenize and self.stop:
            raise ValueError("stop looks at the text: it needs detokenize=True")
        for name, kind in (("output_kind", RequestOutputKind), ("repetition_detection", RepetitionDetectionParams)):
            value = getattr(self, name)
            if not isinstance(value, kind) and (value is not None or name == "output_kind"):
                raise ValueError(f"{name} is {value!r}: it must be a {kind.__name__}")
        structure = self.structured_outputs
        if structure is not None and not isinstance(structure, StructuredOutputsParams):
            raise TypeError(f"structured_outputs is a {type(structure).__name__}: it must be a StructuredOutputsParams")
        for name, (nothing, instead) in _REFUSED.items():
            asked = getattr(self, name)
            if asked is not nothing and asked not in ([], {}):
                raise ValueError(f"{name} is not supported: {instead}")

    def _check_lists(self) -> None:
        texts("stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        texts("bad_words", self.bad_words)
        token_ids("stop_token_ids", self.stop_token_ids)
        token_ids("allowed_token_ids", self.allowed_token_ids)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids is empty: nothing could be chosen")
        if not isinstance(self.logit_bias, Mapping | None):
            raise ValueError(f"logit_bias is {self.logit_bias!r}: it must be a dict of token ids and numbers")
        token_ids("logit_bias", self.logit_bias)
        for token, bias in (self.logit_bias or {}).items():
            Number(-100, 100).check(f"logit_bias of token {token}", bias)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        changed = [
            f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if getattr(self, one.name) != one.default
        ]
        return f"SamplingParams({', '.join(changed)})"

    def clone(self) -> SamplingParams:
        return replace(self)

    def _truncated(self, prompt: list[int], max_model_len: int) -> list[int]:
        """The end of the prompt, which is what it asks."""
        keep = self.truncate_prompt_tokens
        if keep is None:
            return prompt
        if keep == -1:
            keep = max(1, max_model_len - (self.max_tokens or 1))
        return prompt[-keep:]

    def _sampling(self, choice: int, drawn: int | None) -> _engine.Sampling:
        sampling = _engine.Sampling()
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        for name in ("temperature", "top_p", "top_k", "min_p", *penalties):
            setattr(sampling, name, getattr(self, name))
        sampling.logit_bias = list((self.logit_bias or {}).items())
        seed = drawn if self.seed in (None, -1) else self.seed
        if seed is not None:
            sampling.seed = seed % 2**64  # of a negative one the bits
        sampling.choice_index = choice
        sampling.logprobs = -1 if self.logprobs is None else self.logprobs
        return sampling

    def _requests(
        self, engine: _engine.Engine, prompt: Prepared, drawn_seed: int | None = None
    ) -> list[_engine.Request]:
        """One for each answer. `drawn_seed`: where this has none; None: the engine draws one."""
        # What is cached is not read where nobody has left anything; the answers to one prompt share it all the same.
        namespace = uuid.uuid4().hex if self.skip_reading_prefix_cache else prompt.cache_salt
        requests = [self._request(engine, prompt, choice, drawn_seed) for choice in range(self.n)]
        for request in requests:
            request.cache_namespace = namespace
        return requests

    def _request(
        self, engine: _engine.Engine, prompt: Prepared, choice: int, drawn_seed: int | None
    ) -> _engine.Request:
        request = _engine.Request()
        request.prompt = prompt.ids
        request.pictures = list(prompt.pictures)
        if prompt.continued:
            request.continue_text()
        request.shares_prompt = self.n > 1
        request.sampling = self._sampling(choice, drawn_seed)
        request.max_tokens = -1 if self.max_tokens is None else self.max_tokens
        for name in ("min_tokens", "ignore_eos", "skip_special_tokens", "speculation"):
            setattr(request, name, getattr(self, name))
        request.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        request.stop_token_ids = list(self.stop_token_ids or [])
        if self.prompt_logprobs is not None and choice == 0:
            request.prompt_logprobs = self.prompt_logprobs
        if self.structured_outputs is not None:
            request.grammar = self.structured_outputs._grammar()
        self._restrict(engine, request)
        return request

    def _restrict(self, engine: _engine.Engine, request: _engine.Request) -> None:
        """Which tokens may be chosen, beside structured outputs."""
        if self.allowed_token_ids is not None:
            request.allowed_tokens = sorted(set(self.allowed_token_ids))
        request.bad_words = [ids for word in self.bad_words or [] for ids in _bad_word(engine, word)]
        rule = self.repetition_detection
        if rule is not None and rule.max_pattern_size > 0:
            request.repetition = _repetition(rule)
        if self.thinking_token_budget is not None:
            request.thinking = _thinking(engine, self.thinking_token_budget, request.prompt)


def _bad_word(engine: _engine.Engine, word: str) -> list[list[int]]:
    """A word's tokens as it is and behind a space, which is most often written with other tokens."""
    bare = word.lstrip(" ")
    alone, behind_space = engine.encode(bare, False), engine.encode(" " + bare, False)
    if not alone:
        raise ValueError(f"bad_words holds {word!r}, which gives no tokens")
    return [alone] if behind_space[-len(alone) :] == alone else [alone, behind_space]


def _repetition(rule: RepetitionDetectionParams) -> _engine.RepetitionDetection:
    result = _engine.RepetitionDetection()
    result.min_size = max(1, rule.min_pattern_size)
    result.max_size, result.min_count = rule.max_pattern_size, rule.min_count
    return result


def _thinking(engine: _engine.Engine, tokens: int, prompt: list[int]) -> _engine.ThinkingBudget:
    begin, end = engine.encode("<think>", False), engine.encode("</think>", False)
    if len(begin) != 1 or len(end) != 1:
        raise ValueError("thinking_token_budget needs a model that thinks between the tokens <think> and </think>")
    result = _engine.ThinkingBudget()
    result.tokens, result.begin, result.end = tokens, begin[0], end[0]
    # Some templates begin the thoughts: the prompt's last marker says whether they are open.
    markers = [token for token in prompt if token in (begin[0], end[0])]
    result.begun = bool(markers) and markers[-1] == begin[0]
    return result
