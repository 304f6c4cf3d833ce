"""The engine behind the interface that users of offline inference know."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _engine
from ._base import NO_CHAT, Chat, EngineBase, Messages, Prompt, as_list, of_prompt
from ._errors import VolleyError
from ._outputs import OutputBuilder, RequestOutput
from ._params import SamplingParams

_MOST_OPEN = 1024  # requests that one call keeps in the engine's queue
_WAKE_S = 0.1  # how often a waiting call looks for Ctrl-C

#: True: a progress bar on stderr if that is a terminal; or what makes one, with tqdm's arguments.
Progress = bool | Callable[..., Any]


class LLM(EngineBase):
    __doc__ = f"""{EngineBase.__doc__}
    Calls may come from several threads: their requests run together.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers prompts, in their order. `sampling_params`: one for all, one for each, or None for the model's own.

        All prompts run at once, as far as the engine has slots. An error of one ends the call and cancels the others.
        `priority`: of each prompt; lower is earlier.
        """
        each = as_list(prompts)
        params = self._params(sampling_params, len(each))
        texts, ids = [], []
        for prompt, its_params in zip(each, params, strict=True):
            text, tokens = self._prepare(prompt, its_params)
            texts.append(text)
            ids.append(tokens)
        return self._run(texts, ids, params, use_tqdm, priority)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, put into the model's chat template."""
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        params = self._params(sampling_params, len(conversations))
        texts: list[str | None] = []
        ids = []
        for conversation, its_params in zip(conversations, params, strict=True):
            text, tokens = self._chat_prompt(
                conversation,  # type: ignore[arg-type]  # told apart by its first element
                add_generation_prompt,
                continue_final_message,
                tools,
                chat_template_kwargs,
            )
            texts.append(text)
            ids.append(its_params._truncated(tokens, self.info.max_model_len))
        return self._run(texts, ids, params, use_tqdm, None, Chat(self._chat_format(), bool(tools)))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Answers one prompt while it is generated: an output for each step, as `output_kind` says.

        Leaving the loop early (close() of the iterator) cancels the request.
        """
        params = sampling_params or self.get_default_sampling_params()
        text, ids = self._prepare(prompt, params)
        return self._stream(text, ids, params)

    def _stream(self, text: str | None, ids: list[int], params: SamplingParams) -> Iterator[RequestOutput]:
        builder = OutputBuilder(str(next(self._request_ids)), text, ids, params, self._eos, self._token_text)
        session = _engine.Session(self._running, streaming=True)
        try:
            for choice in range(params.n):
                session.submit(choice, params._request(self._running, ids, choice))
            while session.open() > 0:
                for piece in session.wait(_WAKE_S):
                    piece.raise_error()
                    output = builder.add(piece)
                    if output is not None:
                        yield output
        finally:
            _end(session)

    def _params(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, prompts: int
    ) -> Sequence[SamplingParams]:
        """One for each prompt."""
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * prompts
        if len(sampling_params) != prompts:
            raise ValueError(f"{len(sampling_params)} sampling_params for {prompts} prompts: give one, or one for each")
        return sampling_params

    def _run(
        self,
        texts: Sequence[str | None],
        ids: Sequence[list[int]],
        sampling_params: Sequence[SamplingParams],
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        chat: Chat = NO_CHAT,
    ) -> list[RequestOutput]:
        if priority is not None and len(priority) != len(ids):
            raise ValueError(f"{len(priority)} priorities for {len(ids)} prompts: give one for each")
        jobs = [(prompt, choice) for prompt, params in enumerate(sampling_params) for choice in range(params.n)]
        requests = []
        for prompt, choice in jobs:
            request = sampling_params[prompt]._request(self._running, ids[prompt], choice)
            if priority is not None:
                request.priority = priority[prompt]
            requests.append(request)
        readers = iter(chat.prepare(requests))
        with _bar(use_tqdm, len(requests)) as bar:
            completions = self._complete(requests, [prompt for prompt, _ in jobs], bar)
        outputs: list[RequestOutput] = []
        rest = iter(completions)
        for text, prompt_ids, params in zip(texts, ids, sampling_params, strict=True):
            builder = OutputBuilder(
                str(next(self._request_ids)),
                text,
                prompt_ids,
                params,
                chat.ends(self._eos),
                self._token_text,
                list(itertools.islice(readers, params.n)),
            )
            for choice in range(params.n):
                builder.add(next(rest), choice)
            outputs.append(builder.whole())
        return outputs

    def _complete(
        self, requests: Sequence[_engine.Request], prompts: Sequence[int], bar: _Bar
    ) -> list[_engine.Completion]:
        """Runs requests to their ends. `prompts`: the number of each one's prompt, for errors."""
        session = _engine.Session(self._running)
        done: dict[int, _engine.Completion] = {}
        try:
            for index, request in enumerate(requests):
                while session.open() >= _MOST_OPEN:
                    self._collect(session, done, prompts, bar)
                try:
                    session.submit(index, request)
                except VolleyError as error:
                    raise of_prompt(error, prompts[index], prompts) from None
            while session.open() > 0:
                self._collect(session, done, prompts, bar)
        except BaseException:
            # Ctrl-C too: nothing of this call may go on running.
            _end(session)
            raise
        return [done[index] for index in range(len(requests))]

    def _collect(
        self, session: _engine.Session, done: dict[int, _engine.Completion], prompts: Sequence[int], bar: _Bar
    ) -> None:
        # Short waits: between them the interpreter runs the handlers of signals.
        for completion in session.wait(_WAKE_S):
            try:
                completion.raise_error()
            except VolleyError as error:
                raise of_prompt(error, prompts[completion.index], prompts) from None
            done[completion.index] = completion
            bar.update(1)


def _end(session: _engine.Session) -> None:
    """Cancels what is open and waits for it."""
    session.cancel()
    while session.open() > 0:
        session.wait(_WAKE_S)


class _Bar:
    """A progress bar, or nothing."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def update(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(use_tqdm: Progress, total: int) -> _Bar:
    if use_tqdm is False:
        return _Bar()
    if callable(use_tqdm):
        return _Bar(use_tqdm(total=total, desc="Processed prompts"))
    make = importlib.import_module("tqdm.auto").tqdm
    return _Bar(make(total=total, desc="Processed prompts", dynamic_ncols=True, disable=None))
