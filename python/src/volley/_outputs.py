"""What a request gave, in the shape that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from . import _engine
from ._params import RequestOutputKind, SamplingParams
from ._prompts import Prepared


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
class ToolCall:
    """A call of a tool, or a piece of one: the pieces of a call have one index, and only the first has id and name."""

    index: int
    id: str
    name: str
    arguments: str  #: JSON text, as the model wrote it


@dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]  #: the stop token included
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None  #: by token id: the chosen token and the likeliest ones
    finish_reason: str | None  #: "stop", "length", "repetition", "cancelled"; None while it runs
    stop_reason: int | str | None  #: the stop token or string that ended it; None for the model's own end
    tokens_per_step: list[int]  #: tokens that each verify step gave, the bonus token included; empty while it runs
    metrics: RequestMetrics  #: zeros while it runs
    reasoning: str | None = None  #: of a chat with gpt-oss: its thoughts; `text` is then the content alone
    tool_calls: list[ToolCall] = field(default_factory=list)  #: of such a chat

    def finished(self) -> bool:
        return self.finish_reason is not None


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


def _positions(
    positions: Sequence[_engine.PositionLogprobs], token_text: Callable[[int], str]
) -> list[dict[int, Logprob]]:
    return [_position(position, token_text) for position in positions]


def _reason(last: _engine.Completion) -> str:
    return "repetition" if last.repeated else last.finish_reason


@dataclass
class _Parts:
    """The text of an answer or of a piece: `reasoning` and `tool_calls` are empty where it is not told apart."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, more: _Parts) -> None:
        self.text += more.text
        self.reasoning += more.reasoning
        for piece in more.tool_calls:
            if piece.index == len(self.tool_calls):
                self.tool_calls.append(piece)
                continue
            call = self.tool_calls[piece.index]
            self.tool_calls[piece.index] = replace(call, arguments=call.arguments + piece.arguments)


class _Answer:
    """What one answer has given so far."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.parts = _Parts()
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.last: _engine.Completion | None = None


class OutputBuilder:
    """Pieces of a request's answers into the outputs that its output_kind asks for."""

    def __init__(
        self,
        request_id: str,
        prompt: Prepared,
        params: SamplingParams,
        eos: set[int],
        engine: _engine.Engine,
        readers: Sequence[_engine.ChatReader] = (),
    ) -> None:
        """`readers`: of each answer, where answers have parts."""
        self._readers = readers
        self._id, self._prompt, self._params = request_id, prompt, params
        self._eos, self._engine = eos, engine  # this one, be it that its LLM is closed meanwhile
        self._answers = [_Answer() for _ in range(params.n)]
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def add(self, piece: _engine.Completion, index: int | None = None) -> RequestOutput | None:
        """`index`: of the answer, where it is not the piece's own. None where no output is due."""
        number = piece.index if index is None else index
        answer = self._answers[number]
        tokens, parts, positions = piece.tokens, self._parts(piece, number), piece.logprobs
        logprobs = _positions(positions, self._token_text)
        answer.token_ids += tokens
        answer.parts.add(parts)
        answer.logprobs += logprobs
        for position in positions:
            answer.cumulative_logprob += position.chosen.logprob
        answer.last = piece
        if self._params.prompt_logprobs is not None and piece.prompt_logprobs:
            self._prompt_logprobs = [None, *_positions(piece.prompt_logprobs, self._token_text)]
        if self._params.output_kind is RequestOutputKind.FINAL_ONLY:
            return self.whole() if self.finished else None
        if self._params.output_kind is RequestOutputKind.CUMULATIVE:
            return self.whole()
        return self._output([self._completion(number, tokens, parts, logprobs)])

    @property
    def finished(self) -> bool:
        return all(answer.last is not None and answer.last.ended for answer in self._answers)

    def whole(self) -> RequestOutput:
        """Everything so far."""
        return self._output([
            self._completion(index, list(answer.token_ids), answer.parts, list(answer.logprobs))
            for index, answer in enumerate(self._answers)
        ])

    def _token_text(self, token: int) -> str:
        return self._engine.decode([token], False)

    def _parts(self, piece: _engine.Completion, index: int) -> _Parts:
        if not self._params.detokenize:
            return _Parts()
        if not self._readers:
            return _Parts(piece.text + self._stop_text(piece))
        delta = self._readers[index].read(piece)
        calls = [ToolCall(call.index, call.id, call.name, call.arguments) for call in delta.tool_calls]
        return _Parts(delta.content + self._stop_text(piece), delta.reasoning, calls)

    def _stop_text(self, piece: _engine.Completion) -> str:
        """What ended the answer, where it is part of the text."""
        text = ""
        if piece.ended and self._params.include_stop_str_in_output:
            if piece.stop_text is not None:
                text += piece.stop_text
            elif piece.stop_token is not None and not (
                self._params.skip_special_tokens and piece.stop_token in self._eos
            ):
                text += self._token_text(piece.stop_token)
        return text

    def _completion(
        self, index: int, token_ids: list[int], parts: _Parts, logprobs: list[dict[int, Logprob]]
    ) -> CompletionOutput:
        last = self._answers[index].last
        ended = last is not None and last.ended
        stop: int | str | None = None
        if last is not None and ended:
            stop = last.stop_text
            if stop is None and last.stop_token not in self._eos:
                stop = last.stop_token
            if stop is None and last.repeated:
                stop = "repetition_detected"
        usage = last.usage if last is not None and ended else None
        wants = self._params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=parts.text,
            token_ids=token_ids,
            cumulative_logprob=self._answers[index].cumulative_logprob if wants else None,
            logprobs=logprobs if wants else None,
            finish_reason=_reason(last) if last is not None and ended else None,
            stop_reason=stop,
            tokens_per_step=last.tokens_per_step if last is not None and ended else [],
            metrics=RequestMetrics(
                usage.queue_s, usage.ttft_s, usage.total_s, usage.drafted_tokens, usage.accepted_tokens
            ) if usage is not None else RequestMetrics(0.0, 0.0, 0.0, 0, 0),
            reasoning=parts.reasoning or None,
            tool_calls=list(parts.tool_calls),
        )

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        first = self._answers[0].last
        prompt_logprobs = self._prompt_logprobs
        if prompt_logprobs is None and self._params.prompt_logprobs is not None:
            prompt_logprobs = [None]  # a prompt of one token, which nothing precedes
        return RequestOutput(
            request_id=self._id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=self.finished,
            num_cached_tokens=first.usage.cached_tokens if first is not None and first.ended else 0,
        )
