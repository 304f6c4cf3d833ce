"""What a soak run found: figures as text, everything as JSON, and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def _percentiles(values: list[float]) -> str:
    if not values:
        return "none"
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return f"p50 {at(0.5):.3f}, p99 {at(0.99):.3f}, most {ordered[-1]:.3f} s, of {len(ordered)}"


def _text(summary: dict[str, Any]) -> str:
    samples = summary["samples"]
    lines = [
        f"# Soak: {summary['duration_s']:.0f} s at {summary['load']:g} × {summary['capacity_per_s']:.1f} answers a second, seed {summary['seed']}",
        "",
        *(f"- {name}: {count}" for name, count in summary["counts"].items()),
        f"- preemptions: {summary['preemptions']}; steps: {summary['steps']}",
        f"- stops of the process: {len(summary['stops'])}, {sum(seconds for _, seconds in summary['stops']):.1f} s in all",
        f"- wait for the first piece of a stream: {_percentiles([wait for _, wait in summary['waits']])}",
        f"- longest gap of a stream: {_percentiles([gap for _, gap in summary['gaps']])}",
        f"- /metrics: {_percentiles([sample['metrics_s'] for sample in samples])}",
    ]
    if samples:
        resident = [sample["resident"] / 2**20 for sample in samples]
        lines.append(f"- resident memory: {resident[0]:.1f} MiB at the start, {max(resident):.1f} at most, {resident[-1]:.1f} at the end")
        idle = [f"{allocated / 2**20:.3f} MiB" for allocated in summary["allocated"]]
        lines.append(f"- allocated when nothing runs, after the first tenth and at the end: {', '.join(idle)}")
        lines.append(f"- descriptors: {max(sample['descriptors'] for sample in samples):.0f} at most")
    faults = summary["counts"].get("faults", 0)
    lines += ["", f"**{faults} faults**" if faults else "**Nothing lost, different or kept.**"]
    return "\n".join([*lines, *(f"- {fault}" for fault in summary["faults"]), ""])


def _plot(path: Path, summary: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    samples = summary["samples"]
    at = [sample["at"] for sample in samples]
    figure, axes = plt.subplots(4, 1, figsize=(9, 10), sharex=True, layout="constrained")
    for name in ("resident", "allocated"):
        axes[0].plot(at, [sample[name] / 2**20 for sample in samples], label=name)
    axes[0].set_ylabel("memory, MiB")
    axes[0].set_ylim(bottom=0)
    axes[0].legend()
    axes[1].plot(at, [sample["waiting"] for sample in samples], label="waiting")
    axes[1].plot(at, [sample["running"] for sample in samples], label="running")
    axes[1].set_ylabel("requests")
    axes[1].legend()
    for axis, name, label in ((axes[2], "waits", "first piece after, s"), (axes[3], "gaps", "longest gap, s")):
        # Hundreds of thousands of dots as an image: as shapes they would be tens of megabytes.
        axis.plot([x for x, _ in summary[name]], [y for _, y in summary[name]], ".", markersize=2, rasterized=True)
        axis.set_ylabel(label)
    for axis in axes:
        for since, seconds in summary["stops"]:
            axis.axvspan(since, since + seconds, color="tab:red", alpha=0.3, linewidth=1)
    axes[3].set_xlabel("seconds; red: the process is stopped")
    figure.savefig(path, dpi=150)


def write(folder: Path, summary: dict[str, Any]) -> str:
    """The report as text, which is also in report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(summary))
    text = _text(summary)
    (folder / "report.md").write_text(text)
    try:
        _plot(folder / "soak.svg", summary)
    except ImportError:
        text += "No plots: pip install -r scripts/requirements-plots.txt\n"
    return text
