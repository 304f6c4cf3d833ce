"""Numbers from a journal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .journal import Answer, Cell, Journal
from .judging import same_text
from .suite import Plan

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Of repeats."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds: the mean, and the values that so many percent do not exceed."""

    mean: float
    percentiles: dict[int, float]


@dataclass
class Row:
    """A task under a load in one mode, all repeats together."""

    task: str
    load: str
    mode: str
    requests: int = 0
    errors: int = 0
    error_texts: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    judged: int = 0
    right: int = 0
    tokens_per_step: float | None = None  # of answers that do not loop
    looping: int = 0  # answers that end in a loop, which any drafter learns to guess
    looping_tokens_per_step: float | None = None
    tokens_per_step_exact: bool = False  # from the endpoint's count of steps
    drafted_tokens: int | None = None
    output_tok_s: Spread | None = None
    requests_s: Spread | None = None
    ttft: Latency | None = None
    tpot: Latency | None = None
    itl: Latency | None = None
    e2e: Latency | None = None
    segments: int = 1  # the most starts of the program that one repeat took
    # Against mode "off":
    speedup: Spread | None = None
    same: int = 0
    compared: int = 0

    @property
    def accuracy(self) -> float | None:
        return self.right / self.judged if self.judged else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest rank."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def latency(seconds: Iterable[float]) -> Latency | None:
    ordered = sorted(value * 1e3 for value in seconds)
    if not ordered:
        return None
    return Latency(statistics.fmean(ordered), {percent: percentile(ordered, percent) for percent in PERCENTILES})


def wall_s(answers: Iterable[Answer]) -> float:
    """From the first request's start to the last answer's end; of a run that was resumed, the sum over its starts."""
    ends: dict[int, float] = {}
    for answer in answers:
        ends[answer.segment] = max(ends.get(answer.segment, 0.0), answer.start_s + answer.end_s)
    return sum(ends.values())


def loops(text: str) -> bool:
    """Whether a text ends in a piece of up to 200 characters again and again, for 400."""
    tail = text[-600:]
    return any(tail[period:] == tail[:-period] for period in range(1, len(tail) - 399))


def tokens_per_step(answers: Iterable[Answer]) -> tuple[float | None, bool]:
    """Tokens that a verify step gives, the bonus token included, and whether that is exact.

    An answer's first token comes from its prompt and not from a step. Without the endpoint's count of steps, accepted
    tokens tell: at most one step too few is counted for an answer.
    """
    exact_tokens = exact_steps = tokens = steps = 0
    for answer in answers:
        if answer.error or answer.completion_tokens < 2:
            continue
        decoded = answer.completion_tokens - 1
        if answer.steps is not None:
            exact_tokens += decoded
            exact_steps += len(answer.steps)
        if answer.accepted_tokens is not None:
            tokens += decoded
            steps += max(1, decoded - answer.accepted_tokens)
    if exact_steps:
        return exact_tokens / exact_steps, True
    return (tokens / steps, False) if steps else (None, False)


def _time_per_token(answer: Answer) -> float | None:
    if answer.ttft_s is None or answer.completion_tokens < 2:
        return None
    return (answer.last_s - answer.ttft_s) / (answer.completion_tokens - 1)


def throughput(answers: Sequence[Answer]) -> float | None:
    """Tokens a second of one repeat."""
    wall = wall_s(answers)
    return sum(answer.completion_tokens for answer in answers if not answer.error) / wall if wall else None


def _row(journal: Journal, task: str, load: str, mode: str, repeats: int) -> Row:
    row = Row(task, load, mode)
    by_repeat = [journal.of_cell(Cell(task, load, mode, repeat)) for repeat in range(repeats)]
    everything = [answer for answers in by_repeat for answer in answers]
    good = [answer for answer in everything if not answer.error]
    row.requests = len(everything)
    row.errors = len(everything) - len(good)
    row.error_texts = sorted({answer.error for answer in everything if answer.error})[:3]
    row.prompt_tokens = sum(answer.prompt_tokens for answer in good)
    row.completion_tokens = sum(answer.completion_tokens for answer in good)
    verdicts = [verdict for (cell, _), verdict in journal.verdicts.items() if (cell.task, cell.load, cell.mode) ==
                (task, load, mode)]
    row.judged, row.right = len(verdicts), sum(verdict.right for verdict in verdicts)
    looping = [answer for answer in good if loops(answer.text)]
    row.looping, (row.looping_tokens_per_step, _) = len(looping), tokens_per_step(looping)
    row.tokens_per_step, row.tokens_per_step_exact = tokens_per_step(a for a in good if not loops(a.text))
    counted = [answer for answer in good if answer.accepted_tokens is not None and answer.rejected_tokens is not None]
    if counted:
        row.drafted_tokens = sum((a.accepted_tokens or 0) + (a.rejected_tokens or 0) for a in counted)
    row.output_tok_s = spread([value for answers in by_repeat if (value := throughput(answers)) is not None])
    row.requests_s = spread(
        [sum(not a.error for a in answers) / wall for answers in by_repeat if (wall := wall_s(answers))]
    )
    row.ttft = latency(answer.ttft_s for answer in good if answer.ttft_s is not None)
    row.tpot = latency(value for answer in good if (value := _time_per_token(answer)) is not None)
    row.itl = latency(gap for answer in good for gap in answer.gaps_s)
    row.e2e = latency(answer.end_s for answer in good)
    row.segments = max((len({a.segment for a in answers}) for answers in by_repeat), default=1)
    return row


def _compare(journal: Journal, row: Row, repeats: int) -> None:
    """Speed-up and same texts against plain decoding: of the same repeat, so that slow minutes cancel out."""
    ratios = []
    for repeat in range(repeats):
        off = Cell(row.task, row.load, "off", repeat)
        on = Cell(row.task, row.load, row.mode, repeat)
        plain, fast = throughput(journal.of_cell(off)), throughput(journal.of_cell(on))
        if plain and fast:
            ratios.append(fast / plain)
        for answer in journal.of_cell(on):
            other = journal.good(off, answer.sample, answer.turn)
            if not answer.error and other is not None:
                row.compared += 1
                row.same += same_text(answer, other)
    row.speedup = spread(ratios)


def summarize(plan: Plan, journal: Journal) -> list[Row]:
    rows = []
    reproducible = plan.settings.temperature == 0 or plan.settings.seed is not None
    for task in plan.tasks:
        for load in plan.loads:
            for mode in plan.modes:
                row = _row(journal, task.name, load.name, mode, plan.repeats)
                if mode != "off" and "off" in plan.modes:
                    _compare(journal, row, plan.repeats)
                    if not reproducible:
                        row.same = row.compared = 0
                rows.append(row)
    return rows
