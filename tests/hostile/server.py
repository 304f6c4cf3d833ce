"""`volley serve` for attacks: under a limit of its address space, and seen from outside."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("VOLLEY_PROGRAM", ROOT / "build/cpu/bin/volley"))
# What an operator gives a server of small models, so that all of its budgets together stay below 2 GB.
OPTIONS = (
    "--port 0 --threads 1 --max-num-seqs 8 --kv-pages 1040 --grammar-memory-mb 128 --max-total-body-bytes 67108864"
    " --max-response-bytes 33554432 --receive-timeout 5 --log-level warning"
)


class Server:
    def __init__(self, options: str = "", address_space: int | None = None) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if address_space is not None:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        self.log = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *OPTIONS.split(), *options.split()],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            preexec_fn=limit,
            env={**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache")},
        )
        assert self.process.stdout is not None
        if not (found := re.search(r"http://\S+:(\d+)", self.process.stdout.readline())):
            self.process.kill()
            raise RuntimeError(f"the server did not start: {self.said()}")
        self.port = int(found[1])

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-4000:]

    def alive(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) // 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self) -> dict[str, float]:
        """Of each thread, by its name and number, to the nanosecond."""
        used = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                used[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                pass  # it has ended meanwhile
        return used

    def get(self, path: str, timeout: float = 600) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while piece := client.recv(1 << 16):
                answer += piece
        return answer.partition(b"\r\n\r\n")[2]

    def generate(self) -> str:
        """A greedy answer, which nothing that was sent before may change."""
        body = json.dumps({"prompt": "Sort these numbers: 50, 49, 35, 79.", "max_tokens": 12, "temperature": 0}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=600) as client:
            client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = b""
            while piece := client.recv(1 << 16):
                answer += piece
        return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]

    def metrics(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, value in re.findall(r"^volley:(\w+)(?:{[^}]*})? (\S+)$", self.get("/metrics").decode(), re.MULTILINE):
            values[name] = values.get(name, 0) + float(value)
        return values

    def left_over(self, descriptors: int) -> str:
        """What is not given back when nothing runs any more; empty: all is back."""
        deadline = time.monotonic() + 120
        while True:
            values = self.metrics()
            names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "http_body_bytes")
            left = {name: values[name] for name in names if values[name] != 0}
            if values["http_connections"] > 1 or self.descriptors() > descriptors + 1:
                left |= {"connections": values["http_connections"], "descriptors": self.descriptors() - descriptors}
            if not left or time.monotonic() > deadline:
                return str(left or "")
            time.sleep(0.2)

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(timeout=120)
        finally:
            self.process.kill()
