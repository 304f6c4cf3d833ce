"""What LLM and AsyncLLM share: loading a model, and everything but generating."""

from __future__ import annotations

import itertools
import json
import os
import random
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from . import _engine
from ._checks import Number
from ._location import locate
from ._metrics import Metric, metrics_of
from ._options import cost_cache_dir, set_options
from ._params import SamplingParams
from ._pictures import with_data_urls
from ._prompts import Messages, Prepared, Prompt, split
from ._tokenizer import Tokenizer
from ._vllm import from_vllm

_NO_BOUND = 2**31 - 1
_Self = TypeVar("_Self", bound="EngineBase")


class EngineBase:
    """A model and its drafter, loaded.

    Without `model` it is the pocket pair that comes with the package; with a `model` and no `draft`, decoding is plain.
    `seed`: requests without one draw theirs from it; `download_dir`: the Hugging Face cache to look in. Every other
    option is the engine's, None its own choice; docs/serving.md describes them. vLLM's other options are taken, too,
    or refused by name.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        kv_cache_dtype: str | None = None,
        attention_backend: str | None = None,
        draft_attention_backend: str | None = None,
        threads: int | None = None,
        tensor_parallel_size: int | None = None,
        enable_expert_parallel: bool | None = None,
        data_parallel_size: int | None = None,
        speculation: bool | None = None,
        block_size: int | None = None,
        verify: str | int | None = None,
        quantization: str | None = None,
        draft_quantization: str | None = None,
        draft_window: int | None = None,
        draft_window_mask: str | None = None,
        page_size: int | None = None,
        kv_pages: int | None = None,
        kv_memory_bytes: int | None = None,
        memory_fraction: float | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_queue: int | None = None,
        prefill_chunk: int | None = None,
        target_step_ms: int | None = None,
        max_model_len: int | None = None,
        enable_prefix_caching: bool | None = None,
        state_snapshot_tokens: int | None = None,
        state_snapshot_memory_bytes: int | None = None,
        max_picture_pixels: int | None = None,
        picture_cache_bytes: int | None = None,
        language_model_only: bool | None = None,
        mmap: bool | None = None,
        grammar_mask_timeout_ms: int | None = None,
        grammar_compile_timeout_ms: int | None = None,
        grammar_memory_bytes: int | None = None,
        step_timeout_s: int | None = None,
        graphs: bool | None = None,
        cost_cache: str | Path | None = "auto",
        dummy_weights: int | None = None,
        seed: int | None = None,
        download_dir: str | Path | None = None,
        **vllm: Any,
    ) -> None:
        given = dict(locals())
        options = _engine.EngineOptions()
        asked = {name: value for name, value in given.items() if hasattr(options, name) and name != "speculation"}
        asked["prefix_cache"] = enable_prefix_caching
        asked["tokenizer"] = None if tokenizer is None else str(tokenizer)
        theirs = from_vllm(vllm, EngineBase.__init__)
        draft = self._one_of("draft", draft, theirs)
        if seed is not None:
            Number(0, 2**64 - 1, whole=True).check("seed", seed)
        self._seeds = None if seed is None else random.Random(seed)
        target, drafters = locate(model, draft, None if download_dir is None else Path(download_dir))
        if speculation and not drafters:
            raise ValueError("speculation=True needs a drafter: give its folder with draft=…")
        options.model_dir = target.folder
        if speculation is False:
            drafters = []
        if drafters:
            options.draft_dir = drafters[0].folder
            options.second_draft_dir = drafters[1].folder if len(drafters) > 1 else ""
        else:
            options.speculation = "off"
        options.max_queue = _NO_BOUND  # this process asks for itself
        options.cost_cache_dir = cost_cache_dir(cost_cache)
        for name in list(theirs):
            asked[name] = self._one_of(name, asked[name], theirs)
        set_options(options, asked)
        self._log = _engine.WarningLog()
        self._log.attach(options)
        self._loaded: _engine.Engine | None = _engine.create(options)
        self._process = os.getpid()
        self._chat: tuple[_engine.ChatFormat | None] | None = None  # None: nobody has asked
        info = self.info
        self._eos = set(info.eos_token_ids)
        self._request_ids = itertools.count()
        self._names = (target.name, ",".join(drafter.name for drafter in drafters) or None)
        for warning in info.warnings:
            warnings.warn(warning, stacklevel=2)

    @staticmethod
    def _one_of(name: str, ours: Any, theirs: dict[str, Any]) -> Any:
        """An option that vLLM has another name for: whichever was given."""
        if ours is not None and name in theirs:
            raise ValueError(f"{name} is given twice, once under vLLM's name: leave one out")
        return theirs.pop(name) if ours is None and name in theirs else ours

    def _draw_seed(self) -> int | None:
        return None if self._seeds is None else self._seeds.getrandbits(64)

    def _warn(self) -> None:
        """Of what the engine has seen since: calls do so at their end."""
        for warning in self._log.take():
            warnings.warn(warning, stacklevel=4)  # where generate() was called

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _engine.Engine:
        if self._loaded is None:
            raise RuntimeError(f"this {type(self).__name__} is closed")
        if os.getpid() != self._process:
            name = type(self).__name__
            raise RuntimeError(f"this {name} was loaded before the process was forked: load an {name} in each process")
        return self._loaded

    @property
    def info(self) -> _engine.EngineInfo:
        """What was loaded and how it runs."""
        return self._running.info()

    def stats(self) -> _engine.EngineStats:
        """Counters since the start, as of the last step that has ended."""
        return self._running.stats()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges, most of them those of `volley serve`'s /metrics, counters without "_total"."""
        return metrics_of(self.stats())

    def __repr__(self) -> str:
        name = type(self).__name__
        model, draft = self._names
        if self._loaded is None:
            return f"{name}(model={model!r}, draft={draft!r}, closed)"
        info = self._loaded.info()
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
        """Frees the models when the calls that are running have ended; later ones raise RuntimeError.

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
        return Tokenizer(self.info, lambda: self._running)

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
            messages, add_generation_prompt, continue_final_message, tools, chat_template_kwargs
        ).text

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
    ) -> _engine.ChatPrompt:
        """A conversation's prompt: its text, tokens and pictures."""
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message=True needs add_generation_prompt=False")
        arguments = (
            json.dumps(with_data_urls(messages)),
            json.dumps(list(tools)) if tools else "",
            json.dumps(dict(chat_template_kwargs)) if chat_template_kwargs else "",
            add_generation_prompt,
            continue_final_message,
        )
        form = self._chat_format()
        return self._running.chat_prompt(*arguments) if form is None else form.render(*arguments)

    # --- prompts ------------------------------------------------------------------------------------------------

    def _prepare(self, prompt: Prompt, params: SamplingParams) -> Prepared:
        text, tokens, cache_salt = split(prompt)
        ids = self.encode(text) if tokens is None and text is not None else tokens or []
        return Prepared(text, params._truncated(ids, self.info.max_model_len), cache_salt)

    def _prepare_chat(
        self,
        messages: Messages,
        params: SamplingParams,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> Prepared:
        prompt = self._chat_prompt(messages, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        ids = params._truncated(prompt.tokens, self.info.max_model_len)
        if prompt.pictures and len(ids) < len(prompt.tokens):
            raise ValueError("a prompt with pictures cannot be cut: leave truncate_prompt_tokens out")
        return Prepared(prompt.text, ids, continued=False, pictures=prompt.pictures)


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
