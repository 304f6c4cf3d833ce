"""What a program may do, and what it cannot, however it tries."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from volley_suite.sandbox import Limits, run

SHORT = Limits(seconds=1, memory_bytes=512 << 20)
LONG = Limits(seconds=20, memory_bytes=512 << 20)


def test_what_programs_need_works() -> None:
    program = """
import collections, datetime, decimal, functools, hashlib, heapq, itertools, json, math, random, re, string, typing
import threading
print("noise", flush=True)
done = []
thread = threading.Thread(target=lambda: done.append(open(__import__("os").__file__).read(1)))
thread.start(); thread.join()
assert done and __name__ == "__main__"
"""
    outcome = run(program, LONG)
    assert outcome.passed, outcome.why


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError"),
        ("x = '\x00'", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended with status 0"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("x = [0] * 10**9", "MemoryError"),
        ("import os; os.write(3, b'0' * 32 + b' passed'); os._exit(0)", "0000"),
        ("import os\nwhile True: os.write(3, b'x' * 4096)", "xxxx"),
    ],
)
def test_only_the_end_passes(program: str, why: str) -> None:
    outcome = run(program, LONG)
    assert not outcome.passed and why in outcome.why


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.setsid()",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.killpg(os.getpgid(os.getppid()), 0)",
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socketpair()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
        "open('file', 'w')",
        "import os; os.mkdir('folder')",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))",
        "import ctypes; raise OSError(1, '') if ctypes.CDLL(None).unshare(0x10000000) else SystemExit",
    ],
)
def test_the_kernel_refuses(program: str) -> None:
    outcome = run(program, LONG)
    assert not outcome.passed
    assert any(said in outcome.why for said in ("Operation not permitted", "[Errno 1]", "not allowed to raise"))


def test_files_outside_stay_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for action in ("os.remove(p)", "os.rename(p, p + '2')", "open(p, 'a')", "os.truncate(p, 0)", "os.chmod(p, 0)",
                   "os.symlink(p, p + '3')", "os.link(p, p + '4')", "os.utime(p, (1, 1))"):
        outcome = run(f"import os; p = {str(kept)!r}; {action}", LONG)
        assert "Operation not permitted" in outcome.why, action
    assert kept.read_text() == "kept" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import signal, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except Exception: pass\n"
        "while True: time.sleep(1)",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "import os, time; os.closerange(0, 64); time.sleep(600)",
        "import threading\nfor _ in range(8): threading.Thread(target=lambda: all(x == 0 for x in iter(int, 1))).start()\n"
        "for thread in threading.enumerate()[1:]: thread.join()",
    ],
)
def test_its_time_is_bounded_and_nothing_stays(program: str) -> None:
    before = set(os.listdir("/proc"))
    begin = time.monotonic()
    outcome = run(program, SHORT)
    assert not outcome.passed
    assert time.monotonic() - begin < 15
    mine = [pid for pid in set(os.listdir("/proc")) - before if pid.isdigit() and b"confined.py" in _command(pid)]
    assert not mine


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
