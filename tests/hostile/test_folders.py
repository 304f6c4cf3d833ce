"""Model folders made to crash a start, to keep it from ending, or to fill memory (tests/data/hostile/folders.jsonl).

`volley inspect` and `volley serve` end with the status that `volley --help` gives and one sentence, or serve answers; all
within 2 GB of address space and a bound on CPU time, so that a busy machine fails no test.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

import corpus
from support import PROGRAM, ROOT

ADDRESS_SPACE = 2 << 30
CPU_S = 60  # the kernel ends a process that takes more
MODEL_ERROR, USAGE_ERROR = 3, 2
ENVIRONMENT = {**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache")}
CHAT = {"messages": [{"role": "user", "content": "aaaa bbb aab"}], "max_tokens": 4}


@dataclass
class Run:
    status: int
    err: str


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start(log: IO[str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=limit,
    )


def log_file() -> IO[str]:
    """A pipe would keep a program waiting that says more than it holds."""
    return tempfile.TemporaryFile(mode="w+", errors="replace")


def finish(log: IO[str], process: subprocess.Popen[str]) -> Run:
    try:
        process.communicate(timeout=600)
    finally:
        process.kill()
    log.seek(0)
    return Run(process.returncode, log.read())


def ask(url: str) -> int:
    data = json.dumps(CHAT).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def serve(log: IO[str], model: Path, draft: str) -> tuple[bool, int, Run]:
    """Whether it served, the status of one chat, and how it ended."""
    options = ["--port", "0", "--threads", "1", "--max-num-seqs", "4", "--kv-pages", "200", "--log-level", "error"]
    process = start(log, "serve", "--model", str(model), "--draft", draft, *options)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not (found := re.search(r"http://\S+", line)):
        return False, 0, finish(log, process)
    try:
        answered = ask(found.group())
    finally:
        process.send_signal(signal.SIGTERM)
    return True, answered, finish(log, process)


def check_refusal(run: Run) -> None:
    assert run.status in (MODEL_ERROR, USAGE_ERROR), (run.status, run.err[-2000:])
    said = run.err.strip()
    last = said.splitlines()[-1] if said else ""
    assert last.startswith("volley: ") and len(last) < 5_000, said[-2000:]
    assert not re.search(r"panick|RUST_BACKTRACE|backtrace|std::|terminate called", said), said[-2000:]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said), repr(said[-2000:])


@pytest.mark.parametrize("row", corpus.load("folders.jsonl"), ids=lambda row: row["id"])
def test_a_folder_ends_the_start_with_a_sentence_or_serves(row: dict[str, Any], tmp_path: Path) -> None:
    model = corpus.make_folder(tmp_path / "model", ROOT / "models/pocket", row.get("files", {}))
    draft = "none"
    if "draft" in row:
        draft = str(corpus.make_folder(tmp_path / "draft", ROOT / "models/pocket-dflash", row["draft"]))
    with log_file() as log:
        inspected = finish(log, start(log, "inspect", "--model", str(model), "--draft", draft))
    assert inspected.status in (0, MODEL_ERROR, USAGE_ERROR), (inspected.status, inspected.err[-2000:])
    with log_file() as log:
        served, answered, run = serve(log, model, draft)
    assert ("starts" if served else "refused") in row["allow"], (run.status, answered, run.err[-2000:])
    if served:
        assert answered in (200, 400, 503, *row.get("answers", [])), run.err[-2000:]
        assert run.status == 0, (run.status, run.err[-2000:])
    else:
        check_refusal(run)
