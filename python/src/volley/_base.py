"""What LLM and AsyncLLM share: loading a model, and everything but generating."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from . import _engine
from ._errors import VolleyError
from ._metrics import Metric, metrics_of
from ._params import SamplingParams
from ._tokenizer import Tokenizer

#: Text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}.
Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
#: Messages of one conversation: {"role": …, "content": …} each.
Messages: TypeAlias = "Sequence[Mapping[str, Any]]"

_MODELS = Path(__file__).parent / "share" / "volley" / "models"
_DTYPES = {
    "auto": _engine.ComputeType.AUTO,
    "bfloat16": _engine.ComputeType.BFLOAT16,
    "float32": _engine.ComputeType.FLOAT32,
}
_KV_CACHE_DTYPES = {
    "auto": _engine.KvCacheType.AUTO,
    "bfloat16": _engine.KvCacheType.BFLOAT16,
    "float32": _engine.KvCacheType.FLOAT32,
    "fp8": _engine.KvCacheType.FP8,
    "fp8_e4m3": _engine.KvCacheType.FP8,
}
_QUANTIZATIONS = {
    "none": _engine.Quantization.NONE,
    "fp8": _engine.Quantization.FP8,
    "int4": _engine.Quantization.INT4,
}
_DRAFT_QUANTIZATIONS = {
    "auto": _engine.DraftQuantization.AUTO,
    "none": _engine.DraftQuantization.NONE,
    "fp8": _engine.DraftQuantization.FP8,
}
_DRAFT_WINDOW_MASKS = {
    "auto": _engine.DraftWindowMask.AUTO,
    "causal": _engine.DraftWindowMask.CAUSAL,
    "bidirectional": _engine.DraftWindowMask.BIDIRECTIONAL,
}
_Self = TypeVar("_Self", bound="EngineBase")


def _quantization(name: str) -> _engine.Quantization:
    if name not in _QUANTIZATIONS:
        raise ValueError(f"quantization is {name!r}: it must be one of {', '.join(_QUANTIZATIONS)}")
    return _QUANTIZATIONS[name]


def _draft_quantization(name: str) -> _engine.DraftQuantization:
    if name not in _DRAFT_QUANTIZATIONS:
        raise ValueError(f"draft_quantization is {name!r}: it must be one of {', '.join(_DRAFT_QUANTIZATIONS)}")
    return _DRAFT_QUANTIZATIONS[name]


def _draft_window_mask(name: str) -> _engine.DraftWindowMask:
    if name not in _DRAFT_WINDOW_MASKS:
        raise ValueError(f"draft_window_mask is {name!r}: it must be one of {', '.join(_DRAFT_WINDOW_MASKS)}")
    return _DRAFT_WINDOW_MASKS[name]


def _dtype(name: str) -> _engine.ComputeType:
    if name not in _DTYPES:
        raise ValueError(f"dtype is {name!r}: it must be one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _kv_cache_dtype(name: str) -> _engine.KvCacheType:
    if name not in _KV_CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype is {name!r}: it must be one of {', '.join(_KV_CACHE_DTYPES)}")
    return _KV_CACHE_DTYPES[name]


def _verify(policy: str | int) -> _engine.VerifyPolicy:
    kinds = {"auto": _engine.VerifyPolicy.Kind.AUTO, "full": _engine.VerifyPolicy.Kind.FULL}
    result = _engine.VerifyPolicy()
    if isinstance(policy, str) and policy in kinds:
        result.kind = kinds[policy]
    elif isinstance(policy, int) and not isinstance(policy, bool) and 0 <= policy < 1024:
        result.kind = _engine.VerifyPolicy.Kind.FIXED
        result.tokens = policy
    else:
        raise ValueError(f"verify is {policy!r}: it must be 'auto', 'full' or a number of drafted tokens from 0 to 1023")
    return result


def _cost_cache(asked: str | Path | None) -> str:
    """The folder to keep what a step costs in, as the program's --cost-cache; empty: nowhere."""
    if asked is None or asked in ("", "none"):
        return ""
    if asked != "auto":
        return str(asked)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    except RuntimeError:  # this user has no home
        return ""
    return str(home / "volley")


class EngineBase:
    """A model and its drafter, loaded.

    Without `model` it is the pocket pair that comes with the package; with a `model` and no `draft`, decoding is plain.
    Every other option is the engine's, 0 or None its own choice; docs/serving.md describes them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        threads: int = 0,
        tensor_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
        data_parallel_size: int = 1,
        speculation: bool | None = None,
        block_size: int = 0,
        verify: str | int = "auto",
        quantization: str = "none",
        draft_quantization: str = "auto",
        draft_window: int = 0,
        draft_window_mask: str = "auto",
        page_size: int = 0,
        kv_pages: int = 0,
        kv_memory_bytes: int = 0,
        memory_fraction: float = 0,
        max_num_seqs: int = 0,
        max_num_batched_tokens: int = 0,
        prefill_chunk: int = 0,
        target_step_ms: int = -1,
        max_model_len: int = 0,
        enable_prefix_caching: bool = True,
        graphs: bool = True,
        cost_cache: str | Path | None = "auto",
        dummy_weights: int | None = None,
    ) -> None:
        if model is None:
            model = _MODELS / "pocket"
            draft = draft or _MODELS / "pocket-dflash"
        if speculation and draft is None:
            raise ValueError("speculation=True needs a drafter: give its folder with draft=…")
        options = _engine.EngineOptions()
        options.model_dir = str(model)
        if draft is not None and speculation is not False:
            options.draft_dir = str(draft)
        else:
            options.speculation = _engine.Speculation.OFF
        options.device = device
        options.dtype = _dtype(dtype)
        options.kv_cache_dtype = _kv_cache_dtype(kv_cache_dtype)
        options.threads = threads
        options.tensor_parallel_size = tensor_parallel_size
        options.enable_expert_parallel = enable_expert_parallel
        options.data_parallel_size = data_parallel_size
        options.block_size = block_size
        options.verify = _verify(verify)
        options.quantization = _quantization(quantization)
        options.draft_quantization = _draft_quantization(draft_quantization)
        options.draft_window = draft_window
        options.draft_window_mask = _draft_window_mask(draft_window_mask)
        options.page_size = page_size
        options.kv_pages = kv_pages
        options.kv_memory_bytes = kv_memory_bytes
        options.memory_fraction = memory_fraction
        options.max_num_seqs = max_num_seqs
        options.max_num_batched_tokens = max_num_batched_tokens
        options.prefill_chunk = prefill_chunk
        options.target_step_ms = target_step_ms
        options.max_model_len = max_model_len
        options.prefix_cache = enable_prefix_caching
        options.graphs = graphs
        options.cost_cache_dir = _cost_cache(cost_cache)
        options.dummy_weights = dummy_weights
        self._loaded: _engine.Engine | None = _engine.create(options)
        self._chat: tuple[_engine.ChatFormat | None] | None = None  # None: nobody has asked
        self._eos = set(self.info.eos_token_ids)
        self._request_ids = itertools.count()
        self._names = (Path(model).name, Path(draft).name if options.draft_dir and draft is not None else None)

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _engine.Engine:
        if self._loaded is None:
            raise RuntimeError(f"this {type(self).__name__} is closed")
        return self._loaded

    @property
    def info(self) -> _engine.EngineInfo:
        """What was loaded and how it runs."""
        return self._running.info()

    def stats(self) -> _engine.EngineStats:
        """Counters since the start, as of the last step that has ended."""
        return self._running.stats()

    def get_metrics(self) -> list[Metric]:
        """The same counters as /metrics of `volley serve` has them, under the same names."""
        return metrics_of(self.stats())

    def __repr__(self) -> str:
        name = type(self).__name__
        model, draft = self._names
        if self._loaded is None:
            return f"{name}(model={model!r}, draft={draft!r}, closed)"
        info = self.info
        return (
            f"{name}(model={model!r}, draft={draft!r}, device={info.device!r}, dtype={info.dtype!r}, "
            f"block_size={info.block_size}, max_model_len={info.max_model_len}, max_num_seqs={info.max_num_seqs})"
        )

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's generation_config.json over the library's defaults."""
        sampling = self.info.default_sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
        )

    def reset_prefix_cache(self) -> None:
        """Forgets cached prefixes that no running request uses."""
        self._running.drop_prefix_cache()

    def close(self) -> None:
        """Frees the models. Calls that are running end first; later ones raise RuntimeError.

        A device that hangs keeps this waiting, and the interpreter's end too: os._exit() ends the process.
        """
        self._chat = None
        self._loaded = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- text and tokens ----------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with the methods of transformers' that prompts are made with."""
        return Tokenizer(self._running)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._running.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._running.decode(list(token_ids), skip_special_tokens)

    def render_chat(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model reads for a conversation."""
        return self._chat_prompt(
            messages, add_generation_prompt, continue_final_message, tools, chat_template_kwargs, encode=False
        )[0]

    def _chat_format(self) -> _engine.ChatFormat | None:
        """Of models whose answers have parts."""
        if self._chat is None:
            self._chat = (_engine.find_chat_format(self._running),)
        return self._chat[0]

    def _chat_prompt(
        self,
        messages: Messages,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        *,
        encode: bool = True,
    ) -> tuple[str, list[int]]:
        """A conversation's prompt: its text and its tokens."""
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message=True needs add_generation_prompt=False")
        arguments = (
            json.dumps(list(messages)),
            json.dumps(list(tools)) if tools else "",
            json.dumps(dict(chat_template_kwargs)) if chat_template_kwargs else "",
            add_generation_prompt,
            continue_final_message,
        )
        form = self._chat_format()
        if form is not None:
            prompt = form.render(*arguments)
            return prompt.text, prompt.tokens
        text = self._running.render_chat(*arguments)
        # The template writes the special tokens itself.
        return text, self.encode(text, add_special_tokens=False) if encode else []

    # --- prompts ------------------------------------------------------------------------------------------------

    def _prepare(self, prompt: Prompt, params: SamplingParams) -> tuple[str | None, list[int]]:
        """A prompt's text, if it has one, and its tokens."""
        text, tokens = split(prompt)
        ids = self.encode(text) if tokens is None and text is not None else tokens or []
        return text, params._truncated(ids, self.info.max_model_len)

    def _token_text(self, token: int) -> str:
        return self._running.decode([token], False)


class Chat:
    """How the answers of a chat are read: `form` is None where they are one text."""

    def __init__(self, form: _engine.ChatFormat | None, tools: bool) -> None:
        self._form, self._tools = form, tools

    def prepare(self, requests: Sequence[_engine.Request]) -> list[_engine.ChatReader]:
        """A reader for each of these requests; none at all for those whose answers are one text."""
        if self._form is None:
            return []
        return [self._form.prepare(r, self._tools, f"call_{uuid.uuid4().hex[:16]}_") for r in requests]

    def ends(self, eos: set[int]) -> set[int]:
        """The tokens that end a text by themselves."""
        return eos if self._form is None else eos | set(self._form.end_tokens())


#: Of prompts that are no chats.
NO_CHAT = Chat(None, False)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]  # one prompt of token ids
    return list(prompts)  # type: ignore[arg-type]  # several: told apart by the first element


def split(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """The text or the token ids of a prompt."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return prompt.get("prompt"), list(prompt["prompt_token_ids"])
        if "prompt" in prompt:
            return str(prompt["prompt"]), None
        raise ValueError("a prompt's mapping must have \"prompt\" or \"prompt_token_ids\"")
    return None, list(prompt)


def of_prompt(error: VolleyError, prompt: int, prompts: Sequence[int]) -> VolleyError:
    """The error with the number of its prompt, where there are several."""
    if prompts[-1] == 0:
        return error
    return type(error)(f"prompt {prompt}: {error}", error.code)
