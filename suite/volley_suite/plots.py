"""The figures of the DFlash papers: speed-up and tokens per step by task, throughput over the load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .summary import Row, Spread

_COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0")


def _figure(columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    # The same run gives the same bytes.
    plt.rcParams.update({"svg.hashsalt": "volley", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})
    figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _errors(values: Sequence[Spread]) -> list[list[float]]:
    return [[v.median - v.lowest for v in values], [v.highest - v.median for v in values]]


def speedup_plot(rows: Sequence[Row], path: Path) -> bool:
    """Bars by task, one for each load. False if nothing was compared."""
    fast = [row for row in rows if row.speedup is not None]
    if not fast:
        return False
    tasks, loads = _unique(row.task for row in fast), _unique(row.load for row in fast)
    figure, (speed, steps) = _figure(2, max(7.0, 1.1 * len(tasks) + 3), 3.2)
    width = 0.8 / len(loads)
    for number, load in enumerate(loads):
        chosen = [row for row in fast if row.load == load and row.speedup is not None]
        at = [tasks.index(row.task) + (number - (len(loads) - 1) / 2) * width for row in chosen]
        colour = _COLOURS[number % len(_COLOURS)]
        spreads = [row.speedup for row in chosen if row.speedup is not None]
        label = f"{load} at once" if load.isdigit() else load
        bars = speed.bar(at, [value.median for value in spreads], width * 0.92, color=colour, label=label,
                         yerr=_errors(spreads), error_kw={"linewidth": 0.8})
        speed.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
        steps.bar(at, [row.tokens_per_step or 0 for row in chosen], width * 0.92, color=colour)
    speed.axhline(1, color="#888", linewidth=0.8, linestyle="--")
    speed.set_ylabel("speed-up over plain decoding")
    steps.set_ylabel("tokens per verify step")
    for axis in (speed, steps):
        axis.set_xticks(range(len(tasks)), tasks, rotation=20 if len(tasks) > 3 else 0)
    if len(loads) > 1:
        speed.margins(y=0.18)  # the legend stands above the bars
        speed.legend(frameon=False, loc="upper center", ncols=len(loads), columnspacing=1.0)
    _save(figure, path)
    return True


def load_plot(rows: Sequence[Row], path: Path) -> bool:
    """Tokens a second over requests open at once, a panel for each task. False if there are fewer than two loads."""
    timed = [row for row in rows if row.load.isdigit() and row.output_tok_s is not None]
    tasks = _unique(row.task for row in timed)
    if len(_unique(row.load for row in timed)) < 2:
        return False
    figure, axes = _figure(len(tasks), 2.9 * len(tasks) + 0.6, 2.9)
    for axis, task in zip(axes, tasks, strict=True):
        for number, mode in enumerate(_unique(row.mode for row in timed)):
            line = [row for row in timed if row.task == task and row.mode == mode]
            spreads = [row.output_tok_s for row in line if row.output_tok_s is not None]
            axis.errorbar([int(row.load) for row in line], [value.median for value in spreads], yerr=_errors(spreads),
                          marker="o", markersize=4, capsize=2, color=_COLOURS[number], label=f"speculation {mode}")
        loads = sorted({int(row.load) for row in timed if row.task == task})
        axis.set_xscale("log", base=2)
        axis.set_xticks(loads, [str(load) for load in loads])
        axis.set_ylim(bottom=0)
        axis.set_title(task)
        axis.set_xlabel("requests open at once")
    axes[0].set_ylabel("output tokens a second")
    axes[0].legend(frameon=False)
    _save(figure, path)
    return True


def _unique(values: Any) -> list[str]:
    return list(dict.fromkeys(values))
