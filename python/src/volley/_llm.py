"""The engine behind the interface that users of offline inference know."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _engine
from ._base import NO_CHAT, Chat, EngineBase
from ._errors import VolleyError
from ._outputs import OutputBuilder, RequestOutput
from ._params import SamplingParams
from ._prompts import Messages, Prepared, Prompt, as_list, of_prompt

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
        prepared = [self._prepare(prompt, its_params) for prompt, its_params in zip(each, params, strict=True)]
        return self._run(prepared, params, use_tqdm, priority)

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
        prepared = [
            self._prepare_chat(
                conversation,  # type: ignore[arg-type]  # told apart by its first element
                its_params,
                add_generation_prompt,
                continue_final_message,
                tools,
                chat_template_kwargs,
            )
            for conversation, its_params in zip(conversations, params, strict=True)
        ]
        return self._run(prepared, params, use_tqdm, None, Chat(self._chat_format(), bool(tools)))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Answers one prompt while it is generated: an output for each step, as `output_kind` says.

        Leaving the loop early (close() of the iterator) cancels the request.
        """
        params = sampling_params or self.get_default_sampling_params()
        return self._stream(self._prepare(prompt, params), params)

    def _stream(self, prompt: Prepared, params: SamplingParams) -> Iterator[RequestOutput]:
        engine = self._running
        builder = OutputBuilder(str(next(self._request_ids)), prompt, params, self._eos, engine)
        session = _engine.Session(engine, streaming=True)
        try:
            for choice, request in enumerate(params._requests(engine, prompt, self._draw_seed())):
                session.submit(choice, request)
            while session.open() > 0:
                for piece in session.wait(_WAKE_S):
                    piece.raise_error()
                    output = builder.add(piece)
                    if output is not None:
                        yield output
        finally:
            _end(session)
        self._warn()

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
        prepared: Sequence[Prepared],
        sampling_params: Sequence[SamplingParams],
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        chat: Chat = NO_CHAT,
    ) -> list[RequestOutput]:
        if priority is not None and len(priority) != len(prepared):
            raise ValueError(f"{len(priority)} priorities for {len(prepared)} prompts: give one for each")
        engine = self._running
        requests: list[_engine.Request] = []
        prompts: list[int] = []  # of each request, the number of its own
        for number, (prompt, params) in enumerate(zip(prepared, sampling_params, strict=True)):
            for request in params._requests(engine, prompt, self._draw_seed()):
                if priority is not None:
                    request.priority = priority[number]
                requests.append(request)
                prompts.append(number)
        readers = iter(chat.prepare(requests))
        with _bar(use_tqdm, len(requests)) as bar:
            completions = self._complete(engine, requests, prompts, bar)
        self._warn()
        outputs: list[RequestOutput] = []
        rest = iter(completions)
        for prompt, params in zip(prepared, sampling_params, strict=True):
            its_readers = list(itertools.islice(readers, params.n))
            name = str(next(self._request_ids))
            builder = OutputBuilder(name, prompt, params, chat.ends(self._eos), engine, its_readers)
            for choice in range(params.n):
                builder.add(next(rest), choice)
            outputs.append(builder.whole())
        return outputs

    def _complete(
        self, engine: _engine.Engine, requests: Sequence[_engine.Request], prompts: Sequence[int], bar: _Bar
    ) -> list[_engine.Completion]:
        """Runs requests to their ends. `prompts`: the number of each one's prompt, for errors."""
        session = _engine.Session(engine)
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
