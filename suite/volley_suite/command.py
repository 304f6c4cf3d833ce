"""The command line: volley-suite, python -m volley_suite, volley bench serving."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import plots, report, tasks
from .endpoint import Endpoint, Settings, probe
from .errors import SuiteError
from .files import digest
from .journal import Journal
from .judging import judge
from .load import parse_loads
from .sandbox import Limits
from .suite import Plan, measure
from .summary import summarize

_OK, _REQUESTS_FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="volley-suite",
        description="Measures an OpenAI endpoint on datasets, with and without speculation: accuracy, tokens a step, "
        "speed-up, latencies. The same command goes on where an earlier run ended.",
        epilog="Exit status: 0 every request was answered, 1 some failed, 2 nothing could be measured.",
    )
    parser.add_argument("--url", required=True, help="the endpoint, such as http://127.0.0.1:8000")
    parser.add_argument("--baseline-url", metavar="URL",
                        help="the same model without speculation [the same endpoint, with Volley's switch]")
    parser.add_argument("--model", help="name in the API [the first that the endpoint lists]")
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="file that holds the endpoint's key")
    parser.add_argument("--task", action="append", required=True, metavar="NAME[=FILE]", dest="tasks",
                        help=f"may be given several times: {', '.join(tasks.NAMES)}; FILE as published")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where files lie under their published names")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER",
                        help="gets run.jsonl, report.md, report.json, speedup.svg and load.svg")
    parser.add_argument("--speculation", choices=("both", "off", "on"), default="both",
                        help="what is measured, of endpoints that can do both [both]")
    parser.add_argument("--loads", default="1,8", metavar="LIST",
                        help="requests open at once, or a rate as in 2.5/s [1,8]")
    parser.add_argument("--num-samples", type=int, default=128, metavar="N", help="of each task; 0: all [128]")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of everything, interleaved [1]")
    parser.add_argument("--warmup", type=int, metavar="N",
                        help="requests before each measurement [the load, at most 8]")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat",
                        help="completions for base models: HumanEval's prompts are continued [chat]")
    sampling = parser.add_argument_group("sampling (greedy unless --temperature is given)")
    sampling.add_argument("--temperature", type=float, default=0.0)
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--top-k", type=int)
    sampling.add_argument("--seed", type=int, help="sample i gets this + i")
    sampling.add_argument("--max-tokens", type=int, metavar="N", help="of every answer [the sample's own, else 2048]")
    sampling.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON",
                          help="more fields for every request")
    further = parser.add_argument_group("further")
    further.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of one answer [600]")
    further.add_argument("--arrival-seed", type=int, default=1, help="of rates and of the task random [1]")
    further.add_argument("--input-words", type=int, default=256, help="of the task random [256]")
    further.add_argument("--output-tokens", type=int, default=128, help="of the task random [128]")
    further.add_argument("--code-timeout", type=float, default=10, metavar="SECONDS", help="of one program [10]")
    further.add_argument("--code-memory", type=int, default=1024, metavar="MIB", help="of one program [1024]")
    further.add_argument("--json", action="store_true", help="print report.json instead of the tables")
    return parser


def _check(options: argparse.Namespace) -> None:
    least = {"num_samples": 0, "repeats": 1, "warmup": 0, "max_tokens": 1, "input_words": 1, "output_tokens": 1,
             "code_memory": 64}
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise SuiteError(f"--{name.replace('_', '-')} is {value}: it must be at least {bound}.")
    for name in ("timeout", "code_timeout"):
        if getattr(options, name) <= 0:
            raise SuiteError(f"--{name.replace('_', '-')} must be above 0.")
    if not isinstance(options.extra_body, dict):
        raise SuiteError("--extra-body must be a JSON object.")


def _load_tasks(options: argparse.Namespace) -> tuple[list[tasks.Task], dict[str, str]]:
    """The tasks, and what identifies their files."""
    loaded: list[tasks.Task] = []
    digests = {}
    for text in options.tasks:
        name, _, file = text.partition("=")
        if name not in tasks.NAMES:
            raise SuiteError(f"There is no task {name!r}: there are {', '.join(tasks.NAMES)}.")
        if name == "random":
            if file:
                raise SuiteError("The task random has no file: --input-words and --output-tokens say its sizes.")
            shape = tasks.Shape(options.input_words, options.output_tokens, options.arrival_seed)
            found = [tasks.Task("random", tasks.random_samples(shape, options.num_samples or 128))]
            digests["random"] = str(dataclasses.astuple(shape))
        else:
            path = tasks.find_file(name, Path(file) if file else None, options.data)
            found = tasks.load(name, path, options.num_samples)
            digests.update({task.name: digest(path) for task in found})
        loaded += found
    names = [task.name for task in loaded]
    for name in names:
        if names.count(name) > 1:
            raise SuiteError(f"The task {name} is named twice.")
    return loaded, digests


def _api_key(options: argparse.Namespace) -> str:
    if options.api_key_file is None:
        return os.environ.get("OPENAI_API_KEY") or "none"
    try:
        key = options.api_key_file.read_text().partition("\n")[0].strip()
    except OSError as error:
        raise SuiteError(f"Cannot read the key file {options.api_key_file}: {error.strerror}.") from error
    if not key:
        raise SuiteError(f"The key file {options.api_key_file} has no first line.")
    return str(key)


async def _endpoints(options: argparse.Namespace, most_open: int) -> dict[str, Endpoint]:
    """By mode."""
    key = _api_key(options)
    endpoint = await probe(options.url, options.model, key, options.timeout, most_open)
    plain = endpoint
    if options.baseline_url:
        plain = await probe(options.baseline_url, options.model, key, options.timeout, most_open)
    elif not endpoint.is_volley:
        if options.speculation != "both":
            raise SuiteError(f"{options.url} is not Volley, so it has no switch for speculation: leave out "
                             "--speculation, and name the same model without it with --baseline-url URL.")
        return {"served": endpoint}
    modes = {"off": plain, "on": endpoint}
    return modes if options.speculation == "both" else {options.speculation: modes[options.speculation]}


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, seed=options.seed,
        max_tokens=options.max_tokens or 2048, force_max_tokens=options.max_tokens is not None,
        extra_body=options.extra_body,
    )


def _identity(plan: Plan, endpoints: dict[str, Endpoint], digests: dict[str, str]) -> dict[str, Any]:
    """What must be equal for a run to go on."""
    return {
        "version": 1,
        "model": next(iter(endpoints.values())).model,
        "server": next(iter(endpoints.values())).owner,
        "endpoints": {
            mode: {"url": str(endpoint.client.base_url), "model": endpoint.model, "server": endpoint.owner}
            for mode, endpoint in endpoints.items()
        },
        "tasks": {task.name: {"samples": len(task.samples), "file": digests[task.name]} for task in plan.tasks},
        "loads": [load.name for load in plan.loads],
        "modes": list(plan.modes),
        "repeats": plan.repeats,
        "endpoint": "completions" if plan.completions else "chat",
        "settings": dataclasses.asdict(plan.settings),
        "arrival_seed": plan.arrival_seed,
    }


class _Progress:
    """One line on a terminal that is written over; without a terminal each measurement's last one."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            return
        done, _, count = text.rpartition(": ")[2].partition(" of ")
        if done == count:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _end_on_interrupt() -> None:
    """Ctrl-C cancels what runs until it has ended: what ends as it is cancelled may swallow that."""
    loop, run = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if run is not None and not run.done():
            run.cancel()
            loop.call_later(0.5, cancel)

    loop.add_signal_handler(signal.SIGINT, cancel)


async def _measure(
    options: argparse.Namespace, loaded: list[tasks.Task], digests: dict[str, str], progress: _Progress
) -> tuple[Plan, dict[str, Any], Journal]:
    _end_on_interrupt()
    loads = parse_loads(options.loads)
    endpoints = await _endpoints(options, max(load.most_open for load in loads))
    plan = Plan(
        loaded, loads, list(endpoints), options.repeats, _settings(options), options.endpoint == "completions",
        options.warmup, options.arrival_seed,
    )
    identity = _identity(plan, endpoints, digests)
    options.output.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.output / "run.jsonl", identity)
    try:
        await measure(plan, endpoints, journal, progress)
    except BaseException:
        journal.close()
        raise
    finally:
        for endpoint in {id(endpoint): endpoint for endpoint in endpoints.values()}.values():
            await endpoint.client.close()
    return plan, identity, journal


def _finish(
    options: argparse.Namespace, plan: Plan, identity: dict[str, Any], journal: Journal, progress: _Progress
) -> int:
    extra_notes = []
    try:
        judge(plan, journal, Limits(options.code_timeout, options.code_memory << 20), progress)
    except SuiteError as error:  # code cannot be confined here: the rest stands
        extra_notes.append(str(error))
    progress.clear()
    rows = summarize(plan, journal)
    result = report.as_json(rows, identity, extra_notes)
    text = report.markdown(rows, identity, extra_notes)
    (options.output / "report.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (options.output / "report.md").write_text(text)
    plots.speedup_plot(rows, options.output / "speedup.svg")
    plots.load_plot(rows, options.output / "load.svg")
    print(json.dumps(result, ensure_ascii=False) if options.json else text, end="" if not options.json else "\n")
    return _REQUESTS_FAILED if any(row.errors for row in rows) else _OK


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    progress = _Progress()
    try:
        _check(options)
        loaded, digests = _load_tasks(options)
        plan, identity, journal = asyncio.run(_measure(options, loaded, digests, progress))
        try:
            return _finish(options, plan, identity, journal, progress)
        finally:
            journal.close()
    except SuiteError as error:
        progress.clear()
        print(f"volley-suite: {error}", file=sys.stderr)
        return _USAGE
    except (KeyboardInterrupt, asyncio.CancelledError):
        progress.clear()
        print("volley-suite: interrupted; the same command goes on from here.", file=sys.stderr)
        return _INTERRUPTED
