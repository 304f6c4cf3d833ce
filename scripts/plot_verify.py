#!/usr/bin/env python3
"""The plots of docs/verify-budget.md, from what `volley bench --rounds` measured.

    pip install -r scripts/requirements-plots.txt
    volley bench --rounds 200 --verify auto 0 1 3 7 15 ... --output rounds.json
    volley bench --rounds 300 --concurrency-schedule 1,64,1 --trace load.jsonl ...
    scripts/plot_verify.py --rounds rounds.json --trace load.jsonl --out docs/images

Writes verify-cost.svg (predicted against measured time of a round), verify-survival.svg (predicted against actual
survival by position) and verify-load.svg (a load that changes). Prints how many rounds the policy took to follow each
change of the load.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: E402

ROLLING = 10  # rounds that a figure of the time line is averaged over
STEADY = 0.3  # the last share of a load: what its steady state is taken from
FOLLOWED = 0.95  # of the steady tokens a second


def plain_log(axis) -> None:
    """Ticks of a logarithmic axis as people write numbers: 1, 2, 5, 10, 20, …"""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


plt.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text: small files that scale
        "svg.hashsalt": "volley",  # the same input gives the same file
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def auto_runs(report: dict) -> list[dict]:
    runs = [run for run in report["runs"] if run["mode"] == "auto" and run["measured_s"] > 0]
    if not runs:
        raise SystemExit("The report has no run of `auto`: measure with --verify auto.")
    return runs


def plot_cost(report: dict, path: Path) -> None:
    """One point a run: a round's mean time, predicted before it ran and measured."""
    runs = auto_runs(report)
    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    for concurrency in sorted({run["concurrency"] for run in runs}):
        mine = [run for run in runs if run["concurrency"] == concurrency]
        axes.loglog(
            [run["measured_s"] / run["steps"] * 1e3 for run in mine],
            [run["predicted_s"] / run["steps"] * 1e3 for run in mine],
            "o",
            markersize=4,
            label=f"{concurrency} request{'s' if concurrency > 1 else ''}",
        )
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color="#888888", linewidth=1)
    for setter in (axes.set_xlim, axes.set_ylim):
        setter(low, high)
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    axes.set_xlabel("measured time of a round, ms")
    axes.set_ylabel("predicted, ms")
    axes.legend()
    save(figure, path)


def survival(runs: list[dict]) -> tuple[list[int], list[float], list[float]]:
    """Positions, predicted and actual shares of the blocks that verified them, over all the runs."""
    positions, predicted, actual = [], [], []
    for i in range(max(len(run["survival"]) for run in runs)):
        at = [run["survival"][i] for run in runs if i < len(run["survival"])]
        verified = sum(entry["verified"] for entry in at)
        if verified < 30:
            continue
        positions.append(i + 1)
        predicted.append(sum(entry["predicted"] for entry in at) / verified)
        actual.append(sum(entry["survived"] for entry in at) / verified)
    return positions, predicted, actual


def plot_survival(report: dict, path: Path) -> None:
    runs = auto_runs(report)
    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    loads = list(dict.fromkeys(run["load"] for run in runs))
    for load in loads:
        positions, predicted, actual = survival([run for run in runs if run["load"] == load])
        if not positions:
            continue
        (line,) = axes.plot(positions, actual, "o", markersize=4, label=load.removeprefix("geometric:"))
        axes.plot(positions, predicted, "-", linewidth=1.2, color=line.get_color())
    axes.set_xlabel("position in the block (points: actual, lines: predicted)")
    axes.set_ylabel("survives, of the blocks that verified it")
    axes.set_ylim(0, 1.02)
    axes.legend(title="acceptance")
    save(figure, path)


def rolling_speed(samples: list[dict]) -> list[float]:
    """Tokens a second of the rounds from each one on, within its load."""
    speeds = []
    for i, sample in enumerate(samples):
        tokens = seconds = rounds = 0.0
        for later in samples[i:]:
            if later["load"] != sample["load"] or rounds >= ROLLING:
                break
            tokens += later["tokens"]
            seconds += later["seconds"]
            rounds += later["steps"]
        speeds.append(tokens / seconds if seconds > 0 else 0.0)
    return speeds


def report_following(samples: list[dict], speeds: list[float]) -> None:
    """How soon after a load is there the rounds are as good as in its end."""
    for load in dict.fromkeys(sample["load"] for sample in samples):
        full = max(sample["running"] for sample in samples if sample["load"] == load)
        mine = [i for i, s in enumerate(samples) if s["load"] == load and s["running"] == full]
        steady = median(speeds[i] for i in mine[int(len(mine) * (1 - STEADY)) : -ROLLING])
        reached = next(i for i in mine if speeds[i] >= FOLLOWED * steady)
        rounds = samples[reached]["step"] - samples[mine[0]]["step"]
        print(f"load {load}, {full} requests: {steady:.0f} tok/s, followed after {rounds} rounds")


def plot_load(samples: list[dict], path: Path) -> None:
    speeds = rolling_speed(samples)
    report_following(samples, speeds)
    at = [sample["step"] for sample in samples]
    panels = [
        ("requests", [sample["running"] for sample in samples]),
        ("drafted tokens", [sample["draft"] for sample in samples]),
        ("rows", [sample["rows"] for sample in samples]),
        ("tok/s", speeds),
    ]
    figure, axes = plt.subplots(len(panels), 1, figsize=(6.4, 5.2), sharex=True)
    every = max(1, len(samples) // 300)
    for panel, (name, values) in zip(axes, panels):
        panel.plot(at[::every], values[::every], drawstyle="steps-post", linewidth=0.9, color="#1f5fa8")
        panel.set_ylabel(name)
        if name == "drafted tokens":
            panel.set_ylim(bottom=0)
        else:
            panel.set_yscale("log")
            plain_log(panel.yaxis)
    axes[-1].set_xlabel("rounds")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=Path, help="JSON of `volley bench --rounds`")
    parser.add_argument("--trace", type=Path, help="JSON lines of `volley bench --trace`")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    if arguments.rounds is None and arguments.trace is None:
        parser.error("give --rounds, --trace or both")
    if arguments.rounds is not None:
        report = json.loads(arguments.rounds.read_text())
        plot_cost(report, arguments.out / "verify-cost.svg")
        plot_survival(report, arguments.out / "verify-survival.svg")
    if arguments.trace is not None:
        samples = [json.loads(line) for line in arguments.trace.read_text().splitlines()]
        plot_load(samples, arguments.out / "verify-load.svg")


if __name__ == "__main__":
    main()
