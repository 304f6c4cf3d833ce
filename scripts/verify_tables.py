#!/usr/bin/env python3
"""Markdown tables of docs/benchmarks.md, from the JSON that `volley bench` wrote with several --verify policies.

    scripts/verify_tables.py rounds.json [more.json ...]

Takes reports of `volley bench --rounds` and of whole answers (`--repeat N --verify …`), one kind at a time; several files
are one table. Figures are medians over the repeats, in tokens a second; the last columns are what `auto` drafted for a
request and had in a pass, on average, and its ratio to the best of the others.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

AUTO = "auto"


class Run(NamedTuple):
    load: str  # "" is plain decoding, which is part of every load
    concurrency: int
    mode: str
    tok_s: float
    draft: float
    rows: float


def runs_of(report: dict) -> list[Run]:
    if "runs" in report:
        return [Run(r["load"], r["concurrency"], r["mode"], r["tok_s"], r["draft"], r["rows"]) for r in report["runs"]]
    load = report.get("simulated_acceptance", "real")
    return [
        Run(
            "" if r["verify"] == "off" else load,
            r["concurrency"],
            r["verify"],
            r["decode_tok_s"],
            r["policy"]["draft"],
            r["policy"]["rows"],
        )
        for r in report["rows"]
    ]


def mode_order(mode: str) -> tuple[int, int, str]:
    order = {"off": 0, "full": 2, AUTO: 3}
    return (1, int(mode), mode) if mode.isdigit() else (order.get(mode, 4), 0, mode)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def print_table(runs: list[Run]) -> None:
    cells: dict[tuple[str, int], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    loads = [load for load in dict.fromkeys(run.load for run in runs) if load]
    for run in runs:
        for load in [run.load] if run.load else loads:
            cells[load, run.concurrency][run.mode].append(run)
    modes = sorted({run.mode for run in runs}, key=mode_order)
    print("| acceptance | requests | " + " | ".join(modes) + " | auto: draft, rows | auto / best |")
    print("|---|---|" + "---|" * len(modes) + "---|---|")
    ratios = []
    for (load, concurrency), of_mode in sorted(cells.items(), key=lambda cell: (loads.index(cell[0][0]), cell[0][1])):
        speed = {mode: median(run.tok_s for run in mine) for mode, mine in of_mode.items()}
        others = {mode: value for mode, value in speed.items() if mode != AUTO}
        if AUTO not in speed or not others:
            continue
        best = max(others, key=others.__getitem__)
        ratios.append(speed[AUTO] / others[best])
        shown = [f"**{number(speed[m])}**" if m == best else number(speed[m]) if m in speed else "" for m in modes]
        draft, rows = (mean(getattr(run, field) for run in of_mode[AUTO]) for field in ("draft", "rows"))
        name = load.removeprefix("geometric:")
        print(f"| {name} | {concurrency} | {' | '.join(shown)} | {draft:.1f}, {rows:.0f} | {ratios[-1]:.3f} |")
    if not ratios:
        raise SystemExit("No cell has runs of `auto` and of another policy.")
    geometric = math.exp(mean(map(math.log, ratios)))
    print(f"\nLowest ratio {min(ratios):.3f}, geometric mean {geometric:.3f}, {len(ratios)} cells.")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    print_table([run for path in sys.argv[1:] for run in runs_of(json.loads(Path(path).read_text()))])


if __name__ == "__main__":
    main()
