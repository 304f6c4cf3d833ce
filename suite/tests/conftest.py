from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
POCKET = ROOT / "tests/data/pocket_tasks.jsonl"
PROGRAM = Path(os.environ.get("VOLLEY_PROGRAM", ROOT / "build/cpu/bin/volley"))


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of `volley serve` with the pocket pair. It must end with 0."""
    # Whole blocks: on a busy machine the verify budget may find that drafts do not pay.
    process = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0", "--max-num-seqs", "8", "--verify", "full", "--threads", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache")},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^\s(]+", process.stdout.readline())
        assert found, "volley did not start"
        yield found.group()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
