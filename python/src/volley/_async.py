"""The engine in an asyncio program."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from . import _engine
from ._base import NO_CHAT, Chat, EngineBase
from ._outputs import OutputBuilder, RequestOutput
from ._params import SamplingParams
from ._prompts import Messages, Prepared, Prompt


class AsyncLLM(EngineBase):
    __doc__ = f"""{EngineBase.__doc__}
    For one event loop: the one that runs the first generate(). Requests run together; nothing blocks the loop but the
    compiling of a grammar and the making of prompts.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session: _engine.Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[_engine.Completion]] = {}  # by the session's numbers
        self._by_id: dict[str, list[int]] = {}

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Answers one prompt while it is generated: an output for each step, as `output_kind` says.

        Leaving the loop early, or cancelling its task, cancels the request. abort(request_id) ends it, too: its last
        output then has the finish_reason "cancelled".
        """
        params = sampling_params or self.get_default_sampling_params()
        async for output in self._run(self._prepare(prompt, params), params, request_id, priority):
            yield output

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """The same for a conversation, put into the model's chat template."""
        params = sampling_params or self.get_default_sampling_params()
        prompt = self._prepare_chat(
            messages, params, add_generation_prompt, continue_final_message, tools, chat_template_kwargs
        )
        chat = Chat(self._chat_format(), bool(tools))
        async for output in self._run(prompt, params, request_id, priority, chat):
            yield output

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """Ends requests at the next step; nothing happens to those that have ended."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            for number in self._by_id.get(name, []):
                self._cancel(number)

    def shutdown(self) -> None:
        """Cancels what runs and frees the models once it has ended."""
        if self._session is not None:
            self._session.cancel()
        self.close()

    async def _run(
        self,
        prompt: Prepared,
        params: SamplingParams,
        request_id: str | None,
        priority: int,
        chat: Chat = NO_CHAT,
    ) -> AsyncIterator[RequestOutput]:
        session = self._attach()
        name = request_id if request_id is not None else str(next(self._request_ids))
        if name in self._by_id:
            raise ValueError(f"request_id {name!r} is of a request that still runs")
        engine = self._running
        requests = params._requests(engine, prompt, self._draw_seed())
        readers = chat.prepare(requests)
        builder = OutputBuilder(name, prompt, params, chat.ends(self._eos), engine, readers)
        pieces: asyncio.Queue[_engine.Completion] = asyncio.Queue()
        numbers = self._by_id[name] = []
        open_ = 0
        try:
            for request in requests:
                number = next(self._numbers)
                request.priority = priority
                session.submit(number, request)
                self._queues[number] = pieces
                numbers.append(number)
                open_ += 1
            while open_ > 0:
                piece = await pieces.get()
                piece.raise_error()
                open_ -= piece.ended
                output = builder.add(piece, numbers.index(piece.index))
                if output is not None:
                    yield output
        finally:
            for number in numbers:
                self._queues.pop(number, None)
                self._cancel(number)
            del self._by_id[name]
        self._warn()

    def _attach(self) -> _engine.Session:
        """The session, whose news the running event loop hands out."""
        loop = asyncio.get_running_loop()
        if self._session is None:
            self._session = _engine.Session(self._running, streaming=True)
            self._loop = loop
            loop.add_reader(self._session.descriptor, self._hand_out)
        elif self._loop is not loop:
            raise RuntimeError("this AsyncLLM belongs to another event loop: make one in each")
        return self._session

    def _hand_out(self) -> None:
        if self._session is None:
            return
        for piece in self._session.wait(0):
            queue = self._queues.get(piece.index)
            if queue is not None:  # else its reader has left
                queue.put_nowait(piece)

    def _cancel(self, number: int) -> None:
        if self._session is not None:
            self._session.cancel(number)

    def close(self) -> None:
        here = os.getpid() == self._process  # a forked process shares what the loop watches
        if here and self._session is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._session.descriptor)
        self._wake_readers()
        self._session = None
        super().close()

    def _wake_readers(self) -> None:
        """Readers that still wait get their request's end: everything that runs is cancelled."""
        if self._session is None:
            return
        self._session.cancel()
        while self._session.open() > 0:
            for piece in self._session.wait(0.1):
                queue = self._queues.get(piece.index)
                if queue is not None:
                    queue.put_nowait(piece)
