"""Verdicts on a run's answers: after the measurements, because running code takes time from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import code, sandbox
from .answers import is_right
from .journal import Answer, Cell, Journal, Verdict
from .suite import Plan
from .tasks import Sample

_Key = tuple[str, int, str]  # task, sample, text: equal answers are judged once


def judge(plan: Plan, journal: Journal, limits: sandbox.Limits, tell: Callable[[str], None]) -> None:
    """Writes a verdict for each whole answer that can be judged and has none yet. Of several turns the last counts."""
    samples = {task.name: task.samples for task in plan.tasks}
    open_: dict[_Key, list[tuple[Cell, int]]] = {}
    for _, _, cell in plan.cells():
        for index, sample in enumerate(samples[cell.task]):
            answer = journal.good(cell, index, sample.turns - 1)
            if answer is not None and sample.judge and (cell, index) not in journal.verdicts:
                open_.setdefault((cell.task, index, answer.text), []).append((cell, index))

    def give(key: _Key, right: bool, why: str) -> None:
        for cell, index in open_[key]:
            journal.add_verdict(Verdict(cell, index, right, why))

    programs: list[tuple[_Key, str]] = []
    for number, key in enumerate(open_, start=1):
        sample = samples[key[0]][key[1]]
        if sample.code is not None:
            programs.append((key, code.program(sample.code, key[2], _continues(plan, sample))))
        elif sample.judge is not None:
            give(key, is_right(sample.judge, sample.expected, key[2]), "")
            tell(f"judging: {number} of {len(open_)}")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        outcomes = pool.map(lambda entry: sandbox.run(entry[1], limits), programs)
        for number, ((key, _), outcome) in enumerate(zip(programs, outcomes, strict=True), start=1):
            give(key, outcome.passed, outcome.why)
            tell(f"running code: {number} of {len(programs)}")


def _continues(plan: Plan, sample: Sample) -> bool:
    return plan.completions and bool(sample.prompt)


def same_text(a: Answer, b: Answer) -> bool:
    return (a.text, a.reasoning, a.completion_tokens) == (b.text, b.reasoning, b.completion_tokens)
