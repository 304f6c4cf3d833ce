"""Runs programs that models wrote: in a process of their own that can neither write, connect, fork nor stay."""

from __future__ import annotations

import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .errors import SuiteError

_CONFINED = Path(__file__).with_name("confined.py")
_MOST_SAID = 400  # bytes of an outcome


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0  # of the clock, and of CPU time
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Outcome:
    passed: bool
    why: str  # empty if it passed


def run(program: str, limits: Limits = Limits()) -> Outcome:
    """Thread-safe. SuiteError where this machine cannot confine a program (confined.py says what that takes)."""
    secret = secrets.token_hex(16).encode()
    source = secret + b"\n" + program.encode("utf-8", "replace")
    cpu_s = math.ceil(limits.seconds)
    command = [sys.executable, "-I", "-S", "-B", str(_CONFINED), str(limits.memory_bytes), str(cpu_s)]
    # An empty folder to stand in, gone afterwards; and a file as input, so that nothing waits for it to be read.
    with tempfile.TemporaryDirectory(prefix="volley-suite-") as folder, tempfile.TemporaryFile() as given:
        given.write(source)
        given.seek(0)
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env={},
            start_new_session=True,
        )
        try:
            said = _read(process, time.monotonic() + limits.seconds + 1)
        finally:
            # Nothing can leave the group, or fork: this is all that there is.
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            if process.stdout is not None:
                process.stdout.close()
    if said is None:
        return Outcome(False, f"it ran longer than {limits.seconds:g} s")
    return _outcome(said, secret, status)


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """What the process says until it ends, or as much as an outcome can be; None: its time was up."""
    assert process.stdout is not None
    said = b""
    while len(said) < _MOST_SAID:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(process.stdout.fileno(), _MOST_SAID)
        if not piece:
            return said if _ended(process.pid, deadline) else None
        said += piece
    return said


def _ended(pid: int, deadline: float) -> bool:
    """Waits for its end, and leaves its number taken, so that the group can still be killed by it."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:  # the program closed the pipe and goes on
            return False
        time.sleep(0.005)
    return True


def _outcome(said: bytes, secret: bytes, status: int) -> Outcome:
    if said == secret + b" passed":
        return Outcome(True, "")
    text = said[:_MOST_SAID].decode("utf-8", "replace")
    if text.startswith("unconfined "):
        raise SuiteError(f"Code cannot be judged here: {text.removeprefix('unconfined ')}.")
    if not said:
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return Outcome(False, f"the process ended with {name}")
    return Outcome(False, text)
