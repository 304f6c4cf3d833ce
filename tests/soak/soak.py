#!/usr/bin/env python3
"""`make soak`: a server under more load than it can carry, for as long as wanted.

    soak.py [--duration SECONDS] [--seed N] [--load X] [--report DIR] [--cases N] [-- OPTIONS OF volley serve]

Every case is run alone first. Then clients arrive at X times the rate that the server was seen to answer, each with a
case and a manner of its own (plan.py), while the process is stopped and continued now and then, and with
--restart-on-device-error the one that computes for it killed. Every answer must be the
case's lone one, to the byte; one that was cut by its own timeout the beginning of it. At the end slots, pages and
descriptors must be back, and what is allocated as much as when clients left the server alone after the first tenth.
Resident memory is reported only: heaps keep the most that they ever needed, which a burst after any pause can raise.
Waits are reported without what the process was stopped for. Writes report.json, report.md and, where matplotlib is
there, soak.svg. Ends with 1 if anything was lost, different or not given back.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report
from answers import Choice, choices_of, is_cut
from http_client import Lost, Manner, Reply, ask
from plan import Case, Visit, kills, make_cases, make_visit, stops

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("VOLLEY_PROGRAM", ROOT / "build/cpu/bin/volley"))
# Few slots and pages, so that requests wait, are preempted and evict one another. Few kept responses, so that they are as
# many as they may be before memory is compared.
OPTIONS = shlex.split(
    "--max-num-seqs 8 --kv-pages 100 --max-queue 48 --max-model-len 1024 --max-stored-responses 40 --log-level warning"
    " --grammar-mask-timeout-ms 600000"
)

MOST_OPEN = 400  # clients at once
PATIENCE = 120.0  # seconds for an answer; more is one lost
GROWTH = 1.02  # of what is allocated after the first tenth, nothing running


def options_with(others: list[str]) -> list[str]:
    """OPTIONS, less those that the others set."""
    names = {option.split("=")[0] for option in others}
    pairs = zip(OPTIONS[::2], OPTIONS[1::2])
    return [word for name, value in pairs if name not in names for word in (name, value)] + others


class Server:
    def __init__(self, options: list[str]) -> None:
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [str(PROGRAM), "serve", "--port", "0", *options_with(options)]
        # What a thread keeps of freed blocks would count as allocated.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+:(\d+)", self.process.stdout.readline())
        if not found:
            raise SystemExit(f"soak: the server did not start: {self.said()}")
        self.port = int(found[1])

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]

    def resident(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def metrics(self) -> dict[str, float]:
        reply = await ask(self.port, "GET", "/metrics", None, Manner(), PATIENCE)
        values: dict[str, float] = collections.defaultdict(float)
        for name, value in re.findall(r"^volley:(\w+)(?:{[^}]*})? (\S+)$", reply.body.decode(), re.MULTILINE):
            values[name] += float(value)
        return values

    async def idle(self) -> dict[str, float]:
        """Its metrics once nothing runs any more, or after a minute."""
        for _ in range(600):
            values = await self.metrics()
            if values["num_requests_running"] + values["num_requests_waiting"] == 0 and values["http_connections"] <= 1:
                break
            await asyncio.sleep(0.1)
        return values


class Soak:
    def __init__(self, server: Server, arguments: argparse.Namespace) -> None:
        self.server, self.arguments = server, arguments
        self.cases = make_cases(arguments.seed, arguments.cases)
        self.lone: dict[int, list[Choice]] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.waits: list[tuple[float, float]] = []  # when, seconds to the first piece of a stream
        self.gaps: list[tuple[float, float]] = []  # when, longest between two pieces
        self.samples: list[dict[str, float]] = []
        self.begin = 0.0
        self.stops: list[tuple[float, float]] = []  # from when to when the process was stopped, time.monotonic()

    def body_of(self, visit: Visit) -> dict[str, Any]:
        body = {"model": "pocket", **visit.case.body, "stream": visit.stream}
        return body if visit.timeout is None else {**body, "timeout": visit.timeout}

    async def run_alone(self) -> float:
        """Every case, one at a time, whole and streamed by turns. Answers a second of a second pass, some at once."""
        for number, case in enumerate(self.cases):
            visit = Visit(case, stream=number % 2 == 0)
            reply = await ask(self.server.port, "POST", case.path, self.body_of(visit), Manner(), PATIENCE)
            if reply.status != 200:
                raise SystemExit(f"soak: {case.kind} alone: {reply.status} {reply.body!r}")
            self.lone[id(case)] = choices_of(visit, reply)
        began = time.monotonic()
        width = asyncio.Semaphore(8)

        async def one(case: Case) -> None:
            async with width:
                await self.visit(Visit(case, label="measured"))

        await asyncio.gather(*map(one, self.cases))
        return len(self.cases) / (time.monotonic() - began)

    def running_s(self, begin: float, end: float) -> float:
        """Between the two, less what the process was stopped for: nobody waits for the server meanwhile."""
        return end - begin - sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.stops)

    def fault(self, what: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < 50:
            self.faults.append(what)
            print(f"soak: {what}", file=sys.stderr, flush=True)

    async def visit(self, visit: Visit) -> None:
        self.counts[f"sent {visit.label}"] += 1
        try:
            if visit.label == "broken":
                reply = await ask(self.server.port, "POST", visit.case.path, visit.case.body, visit.manner, PATIENCE)
                if reply.status != 400:
                    self.fault(f"{visit.case.body!r} was answered with {reply.status}")
                return
            sent = time.monotonic()
            reply = await ask(self.server.port, "POST", visit.case.path, self.body_of(visit), visit.manner, PATIENCE)
            self.judge(visit, sent, reply)
        except (Lost, OSError, asyncio.TimeoutError, ValueError, KeyError) as error:
            self.fault(f"{visit.case.kind}, {visit.label}: {type(error).__name__}: {error}")

    def judge(self, visit: Visit, sent: float, reply: Reply) -> None:
        if reply.left:
            self.counts["left"] += 1
            return
        if reply.status in (429, 504):  # a full queue; a timeout before the first token
            allowed = reply.status == 429 or visit.timeout is not None
            self.counts[f"refused {reply.status}"] += 1
            if not allowed:
                self.fault(f"{visit.case.kind}: {reply.status} {reply.body[:200]!r}")
            return
        if reply.status != 200:
            return self.fault(f"{visit.case.kind}, {visit.label}: {reply.status} {reply.body[:200]!r}")
        answer, lone = choices_of(visit, reply), self.lone[id(visit.case)]
        if answer == lone:
            self.counts["equal"] += 1
        elif visit.timeout is not None and is_cut(answer, lone):
            self.counts["cut by their timeout"] += 1
        else:
            self.fault(f"{visit.case.kind}, {visit.label}: {answer} instead of {lone}")
        if visit.label == "stream" and reply.arrivals:
            at = sent - self.begin
            self.waits.append((at, self.running_s(sent, reply.arrivals[0])))
            self.gaps.append((at, max([self.running_s(a, b) for a, b in zip(reply.arrivals, reply.arrivals[1:])], default=0.0)))

    async def load(self, rng: random.Random, rate: float, seconds: float) -> None:
        """Clients arrive whatever the server does. None waits for another one."""
        open_visits: set[asyncio.Task[None]] = set()
        begin = at = time.monotonic()
        while time.monotonic() - begin < seconds and self.server.process.poll() is None:
            at = max(at + rng.expovariate(rate), time.monotonic() - 1)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            visit = make_visit(rng, self.cases)
            if len(open_visits) >= MOST_OPEN:
                self.counts["not sent: too many open"] += 1
                continue
            task = asyncio.create_task(self.visit(visit))
            open_visits.add(task)
            task.add_done_callback(open_visits.discard)
        await asyncio.gather(*open_visits)

    async def watch(self) -> None:
        while True:
            try:
                asked = time.monotonic()
                values = await self.server.metrics()
                now = time.monotonic()
            except (Lost, OSError, asyncio.TimeoutError) as error:
                self.fault(f"/metrics: {type(error).__name__}: {error}")
                return
            self.samples.append(
                {
                    "at": now - self.begin,
                    "resident": self.server.resident(),
                    "allocated": values["heap_bytes"],
                    "descriptors": self.server.descriptors(),
                    "running": values["num_requests_running"],
                    "waiting": values["num_requests_waiting"],
                    "metrics_s": self.running_s(asked, now),
                }
            )
            await asyncio.sleep(max(0.25, self.arguments.duration / 2000))

    async def stop_and_continue(self) -> None:
        for after, pause in stops(self.arguments.seed + 2):
            await asyncio.sleep(after)
            since = time.monotonic()
            self.server.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(pause)
            finally:
                self.server.process.send_signal(signal.SIGCONT)
                self.stops.append((since, time.monotonic()))

    async def kill_processes(self) -> None:
        """Those that compute for the server, if it was started with --restart-on-device-error."""
        for after in kills(self.arguments.seed + 3):
            await asyncio.sleep(after)
            for pid in self.server.children():
                os.kill(pid, signal.SIGKILL)
                self.counts["processes killed"] += 1

    async def run(self) -> dict[str, Any]:
        rate = await self.run_alone()
        before = await self.server.idle()
        descriptors = self.server.descriptors()
        print(f"soak: {len(self.cases)} cases alone; {rate:.1f} answers a second; now {self.arguments.load} times that", flush=True)
        self.begin = time.monotonic()
        others = [asyncio.create_task(work()) for work in (self.watch, self.stop_and_continue, self.kill_processes)]
        rng = random.Random(self.arguments.seed + 1)
        allocated = []  # each time that nothing runs
        await self.load(rng, rate * self.arguments.load, 0.1 * self.arguments.duration)
        if self.server.process.poll() is None:
            allocated.append((await self.server.idle())["heap_bytes"])
        await self.load(rng, rate * self.arguments.load, 0.9 * self.arguments.duration)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self.server.process.poll() is not None:
            self.fault(f"the server ended with {self.server.process.returncode}: {self.server.said()}")
            return self.summary(rate, {}, allocated)
        after = await self.server.idle()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "http_body_bytes"):
            if after[name] != 0:
                self.fault(f"{name} is {after[name]} when nothing runs")
        if after["http_connections"] > 1 or self.server.descriptors() > descriptors + 2:
            self.fault(f"{after['http_connections']} connections, {self.server.descriptors()} descriptors; before {descriptors}")
        if after["num_preemptions_total"] == before["num_preemptions_total"]:
            self.fault("nothing was preempted: behind -- give --kv-pages fewer")
        if after["device_restarts_total"] != self.counts["processes killed"]:
            self.fault(f"{self.counts['processes killed']} processes were killed, {after['device_restarts_total']} restarts counted")
        allocated.append(after["heap_bytes"])
        if allocated[1] == 0:
            self.fault("heap_bytes is 0: a sanitizer's malloc counts nothing, so no leak can be seen")
        if allocated[1] > GROWTH * allocated[0]:
            self.fault(f"{allocated[1]:.0f} bytes are allocated when nothing runs; after the first tenth {allocated[0]:.0f}")
        self.server.process.send_signal(signal.SIGTERM)
        if (status := self.server.process.wait(timeout=60)) != 0:
            self.fault(f"the server ended with {status}: {self.server.said()}")
        totals = {name: after[name] - before[name] for name in after if name.endswith("_total")}
        return self.summary(rate, totals, allocated)

    def summary(self, rate: float, totals: dict[str, float], allocated: list[float]) -> dict[str, Any]:
        return {
            "seed": self.arguments.seed,
            "duration_s": self.arguments.duration,
            "load": self.arguments.load,
            "capacity_per_s": rate,
            "stops": [(since - self.begin, until - since) for since, until in self.stops],
            "counts": dict(sorted(self.counts.items())),
            "preemptions": totals.get("num_preemptions_total"),
            "steps": totals.get("engine_steps_total"),
            "allocated": allocated,
            "faults": self.faults,
            "waits": self.waits,
            "gaps": self.gaps,
            "samples": self.samples,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=3)
    parser.add_argument("--cases", type=int, default=420)
    parser.add_argument("--report", type=Path, default=ROOT / "build/soak")
    parser.add_argument("options", nargs="*", help="of volley serve, after --: more, or in place of the few pages and slots")
    arguments = parser.parse_args()
    server = Server(arguments.options)
    try:
        summary = asyncio.run(Soak(server, arguments).run())
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    print(report.write(arguments.report, summary))
    return 1 if summary["counts"].get("faults") else 0


if __name__ == "__main__":
    sys.exit(main())
