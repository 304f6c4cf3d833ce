"""A run as tables for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .summary import Latency, Row, Spread


def _spread(value: Spread | None, form: str) -> str:
    if value is None:
        return "-"
    median = format(value.median, form)
    if value.lowest == value.highest:
        return median
    return f"{median} ({format(value.lowest, form)} to {format(value.highest, form)})"


def _percent(row: Row) -> str:
    return "-" if row.accuracy is None else f"{100 * row.accuracy:.1f} %"


def _looping(row: Row) -> str:
    """How many answers loop, and the tokens a step of these."""
    steps = "" if row.looping_tokens_per_step is None else f" ({row.looping_tokens_per_step:.2f})"
    return f"{row.looping}{steps}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---" if column in ("task", "speculation") else "--:" for column in header]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines]) + "\n"


def speed_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        steps = "-" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}"
        if row.tokens_per_step is not None and not row.tokens_per_step_exact:
            steps = "≤ " + steps
        lines.append([
            row.task, row.load, row.mode, str(row.requests), _percent(row), steps, _looping(row),
            _spread(row.output_tok_s, ".0f"),
            _spread(row.speedup, ".2f") + (" ×" if row.speedup else ""),
            f"{row.same} of {row.compared}" if row.compared else "-",
        ])
    header = ["task", "load", "speculation", "requests", "right", "tokens a step", "looping", "tokens/s", "speed-up",
              "same text"]
    return _table(header, lines)


def _cells(value: Latency | None, percents: Sequence[int]) -> list[str]:
    if value is None:
        return ["-"] * len(percents)
    return [f"{value.percentiles[percent]:.4g}" for percent in percents]


def latency_table(rows: Sequence[Row]) -> str:
    percents = (50, 90, 99)
    header = ["task", "load", "speculation"]
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        header += [f"{name} p{percent}" for percent in percents]
    header.append("errors")
    lines = []
    for row in rows:
        line = [row.task, row.load, row.mode]
        for value in (row.ttft, row.tpot, row.itl, row.e2e):
            line += _cells(value, percents)
        lines.append([*line, str(row.errors)])
    return _table(header, lines)


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know to trust the numbers."""
    result = []
    for row in rows:
        where = f"{row.task} at load {row.load}, speculation {row.mode}"
        if row.mode == "off" and row.drafted_tokens:
            result.append(f"{where}: the endpoint drafted {row.drafted_tokens} tokens although it was asked for none: "
                          "this is no measurement of plain decoding.")
        if row.segments > 1:
            result.append(f"{where}: a repeat was measured in {row.segments} starts; its tokens a second are over the "
                          "time of all of them.")
        for text in row.error_texts:
            result.append(f"{where}: {row.errors} errors, such as: {text}")
    return result


def markdown(rows: Sequence[Row], plan: dict[str, Any], extra_notes: Sequence[str]) -> str:
    lines = ["# Suite", "", f"Model {plan['model']}, {plan['repeats']} repeats; speeds are medians of repeats, with the "
             "lowest and the highest. Latencies are in milliseconds.", "", speed_table(rows), latency_table(rows)]
    found = [*extra_notes, *notes(rows)]
    return "\n".join(lines) + "".join(f"\n- {note}" for note in found) + ("\n" if found else "")


def as_json(rows: Sequence[Row], plan: dict[str, Any], extra_notes: Sequence[str]) -> dict[str, Any]:
    return {"plan": plan, "notes": [*extra_notes, *notes(rows)],
            "rows": [{**asdict(row), "accuracy": row.accuracy} for row in rows]}
