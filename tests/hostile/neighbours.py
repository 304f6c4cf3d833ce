#!/usr/bin/env python3
"""`make neighbours`: what attacks cost those who share the server with them.

    neighbours.py [--only REGEX] [--report FILE] [-- OPTIONS OF volley serve]

Runs the corpus (tests/data/hostile) one attack after the other beside a canary in a process of its own and from an
address of its own: an endless stream, a request of one token and /health every 0.1 s. Ends with 1 if an attack holds the stream up for more than
250 ms or a new request for more than 1 s, or if memory passes 2 GB, the server ends, or slots, pages and descriptors do
not come back.

The bounds are those of two idle cores. On a machine that others use the canary alone sees longer gaps: it is measured
without attacks first, and bounds are at least twice its worst. What an attack does it does again, and what others do
seldom: only an attack that breaks a bound in each of four runs is a fault.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import re
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import corpus
from server import ROOT, Server

STREAM_GAP_S, WAIT_S = 0.25, 1.0
EVERY_S = 0.1
ADDRESS = "127.0.0.2"  # the attacks come from 127.0.0.1
BASELINE_S = 15.0
RUNS = 4
MOST_MIB = 2048
PATIENCE_S = 600.0


class Canary:
    """Longest times since they were last asked for; an operation under way counts with its time so far."""

    KINDS = ("gap", "request", "health")

    def __init__(self, port: int) -> None:
        self.port = port
        self.worst = dict.fromkeys(self.KINDS, 0.0)
        self.since: dict[str, float | None] = dict.fromkeys(self.KINDS, None)
        self.failures: list[str] = []
        for work in (self.stream, self.request, self.health):
            threading.Thread(target=self.forever, args=(work,), daemon=True).start()

    def forever(self, work: Any) -> None:
        while True:
            try:
                work()
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(f"{work.__name__}: {error!r}")
                time.sleep(EVERY_S)

    def begin(self, kind: str) -> None:
        self.since[kind] = time.monotonic()

    def end(self, kind: str) -> None:
        since = self.since[kind]
        assert since is not None
        self.worst[kind] = max(self.worst[kind], time.monotonic() - since)
        self.since[kind] = None

    def ask(self, method: str, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE_S, source_address=(ADDRESS, 0))
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
        return connection.getresponse()

    def stream(self) -> None:
        body = {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        answer = self.ask("POST", "/v1/completions", body)
        assert answer.status == 200, answer.status
        with answer:
            answer.readline()
            self.begin("gap")
            while answer.readline():
                self.end("gap")
                self.begin("gap")
        self.since["gap"] = None

    def once(self, kind: str, method: str, path: str, body: dict[str, Any] | None) -> None:
        self.begin(kind)
        with self.ask(method, path, body) as answer:
            answer.read()
        self.end(kind)
        assert answer.status == 200, answer.status
        time.sleep(EVERY_S)

    def request(self) -> None:
        self.once("request", "POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 1})

    def health(self) -> None:
        self.once("health", "GET", "/health", None)

    def take(self) -> dict[str, Any]:
        now = time.monotonic()
        taken: dict[str, Any] = {}
        for kind in self.KINDS:
            since = self.since[kind]
            taken[kind] = max(self.worst[kind], now - since if since is not None else 0.0)
            self.worst[kind] = 0.0
        taken["failures"], self.failures = self.failures, []
        return taken


def run_canary(port: int, parent: Connection) -> None:
    canary = Canary(port)
    while parent.recv():
        parent.send(canary.take())


def run(only: str, options: list[str]) -> dict[str, Any]:
    server = Server(" ".join(options))
    faults: list[str] = []
    here, there = multiprocessing.Pipe()
    canary = multiprocessing.Process(target=run_canary, args=(server.port, there), daemon=True)
    descriptors = server.descriptors()
    canary.start()

    def take() -> dict[str, Any]:
        here.send(True)
        return here.recv()

    time.sleep(2)
    take()
    time.sleep(BASELINE_S)
    baseline = take()
    bounds = {
        "gap": max(STREAM_GAP_S, 2 * baseline["gap"]),
        "request": max(WAIT_S, 2 * baseline["request"]),
        "health": max(WAIT_S, 2 * baseline["health"]),
    }
    print("neighbours: without attacks " + ", ".join(f"{k} {baseline[k]:.3f} s" for k in bounds), flush=True)
    rows = []
    for attack in corpus.attacks():
        if not re.search(only, attack.id):
            continue
        best: dict[str, float] = {}
        for count in range(1, RUNS + 1):
            used = sum(server.cpu_s().values())
            attack.run(server.port)
            time.sleep(0.3)
            if not server.alive():
                faults.append(f"{attack.id} ended the server: {server.said()}")
                return {"faults": faults, "rows": rows}
            seen = take()
            cpu = sum(server.cpu_s().values()) - used
            best = {kind: min(seen[kind], best.get(kind, PATIENCE_S)) for kind in bounds}
            # An attack that takes all connections has the canary refused, too: that is its answer, and it comes soon.
            broken = [kind for kind in bounds if best[kind] > bounds[kind]]
            if not broken:
                break
        rows.append({"id": attack.id, **best, "cpu_s": cpu, "runs": count, "memory_mib": server.memory_mib()})
        if wrong := attack.wrong():
            faults.append(wrong)
        if seen["failures"] and not attack.row.get("crowds"):
            faults.append(f"{attack.id}: the canary failed: {seen['failures'][:3]}")
        if broken:
            faults.append(f"{attack.id}: " + ", ".join(f"{kind} {best[kind]:.3f} s" for kind in broken))
            print(f"neighbours: {faults[-1]}", flush=True)
    here.send(False)
    canary.terminate()
    canary.join()
    if left := server.left_over(descriptors):
        faults.append(f"not given back: {left}")
    most = server.memory_mib("VmHWM")
    if most > MOST_MIB:
        faults.append(f"it took {most} MiB")
    if status := server.stop():
        faults.append(f"it ended with {status}: {server.said()}")
    return {"baseline": baseline, "bounds": bounds, "most_memory_mib": most, "faults": faults, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--report", default=str(ROOT / "build/neighbours.json"))
    parser.add_argument("options", nargs="*", help="more options of volley serve, after --")
    arguments = parser.parse_args()
    found = run(arguments.only, arguments.options)
    with open(arguments.report, "w") as file:
        json.dump(found, file, indent=1)
    rows = found["rows"]
    for kind in Canary.KINDS:
        for row in sorted(rows, key=lambda row: -row[kind])[:3]:
            print(f"neighbours: {kind} {row[kind]:.3f} s, {row['runs']} runs: {row['id']}")
    print(f"neighbours: {len(rows)} attacks, most memory {found.get('most_memory_mib')} MiB, {len(found['faults'])} faults")
    for fault in found["faults"]:
        print(f"neighbours: {fault}", file=sys.stderr)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
