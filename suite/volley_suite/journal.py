"""The run's file: one JSON object a line, appended as things happen, so that a run goes on after any end.

Lines: {"kind": "plan"} first, then "answer" (one turn of one sample) and "verdict". The last line of a key counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import SuiteError


@dataclass(frozen=True)
class Cell:
    """One measurement: a task under a load, with speculation "off", "on" or "served" (as the endpoint has it)."""

    task: str
    load: str
    mode: str
    repeat: int


@dataclass
class Answer:
    cell: Cell
    sample: int
    turn: int
    segment: int  # of the cell: each start of the program that measured some of it
    start_s: float = 0.0  # since the segment's begin
    ttft_s: float | None = None  # from start_s to the first text
    last_s: float = 0.0  # from start_s to the last text
    end_s: float = 0.0  # from start_s to the end of the stream
    gaps_s: list[float] = field(default_factory=list)  # between pieces of text
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: list[int] | None = None  # tokens of each verify step, where the endpoint tells
    accepted_tokens: int | None = None
    rejected_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    cell: Cell
    sample: int
    right: bool
    why: str


class Journal:
    """Opens the file, reads what is there, and appends. One process at a time."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        self._answers: dict[Cell, dict[tuple[int, int], Answer]] = {}
        self.verdicts: dict[tuple[Cell, int], Verdict] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise SuiteError(f"{path} is being written by another run.") from error
        try:
            self._read(path, json.loads(json.dumps(plan)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._file)

    def _read(self, path: Path, plan: dict[str, Any]) -> None:
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            data = file.read()
        # A run that was killed while it wrote leaves a line without its end: that request is asked again.
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._take(entry, plan, number == 1)
            except (ValueError, KeyError, TypeError) as error:
                raise SuiteError(f"{path}, line {number} is no line of a run ({error}).") from error
            except SuiteError as error:
                raise SuiteError(f"{path} is of another run: {error} Give another --output.") from error
        if whole == 0:
            self._write({"kind": "plan", **plan})

    def _take(self, entry: dict[str, Any], plan: dict[str, Any], first: bool) -> None:
        kind = entry.pop("kind")
        if first != (kind == "plan"):
            raise ValueError("the plan must be the first line")
        if kind == "plan":
            for name in sorted({*entry, *plan}):
                if entry.get(name) != plan.get(name):
                    raise SuiteError(f"its {name} is {entry.get(name)!r}, now it is {plan.get(name)!r}.")
            return
        cell = Cell(**entry.pop("cell"))
        if kind == "answer":
            answer = Answer(cell=cell, **entry)
            self._answers.setdefault(cell, {})[answer.sample, answer.turn] = answer
        elif kind == "verdict":
            verdict = Verdict(cell=cell, **entry)
            self.verdicts[cell, verdict.sample] = verdict
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def _write(self, entry: dict[str, Any]) -> None:
        # One call for a whole line: what a kill leaves is whole lines and at most the beginning of one.
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        written = 0
        while written < len(line):
            written += os.write(self._file, line[written:])

    def add_answer(self, answer: Answer) -> None:
        answer.gaps_s = [round(gap, 6) for gap in answer.gaps_s]
        self._write({"kind": "answer", **asdict(answer)})
        self._answers.setdefault(answer.cell, {})[answer.sample, answer.turn] = answer

    def add_verdict(self, verdict: Verdict) -> None:
        self._write({"kind": "verdict", **asdict(verdict)})
        self.verdicts[verdict.cell, verdict.sample] = verdict

    def good(self, cell: Cell, sample: int, turn: int) -> Answer | None:
        """The answer, unless it is an error: those are asked again."""
        answer = self._answers.get(cell, {}).get((sample, turn))
        return answer if answer is not None and not answer.error else None

    def of_cell(self, cell: Cell) -> list[Answer]:
        return list(self._answers.get(cell, {}).values())

    def next_segment(self, cell: Cell) -> int:
        return max((answer.segment for answer in self.of_cell(cell)), default=-1) + 1
