#!/usr/bin/env python3
"""What a tenant waits beside another one that asks for twenty times as much: `volley serve` with two API keys.

The small tenant's requests come at random times, first alone, then while the large one's come at --times its rate,
which is --load times what the server can answer; so by turns, --repeat times. Requests are alike: random prompts, and
greedy answers of --output-tokens. Reports the time to a small tenant's first token, alone and beside the other one. The
large one is a process of its own: it must not delay the clock that measures the small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

KEYS = {"small": "sk-small", "large": "sk-large"}


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        command = [options.volley, "serve", "--port", "0", "--log-level", "warning", *options.engine]
        environment = {**os.environ, "VOLLEY_API_KEYS": ",".join(KEYS.values())}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+:(\d+)", self.process.stdout.readline())
        if not found:
            raise SystemExit("tenants: the server did not start")
        self.port = int(found[1])


class Client:
    def __init__(self, port: int, options: argparse.Namespace, seed: int) -> None:
        self.port, self.options, self.draw = port, options, random.Random(seed)

    async def ask(self, tenant: str) -> float | None:
        """Seconds to the first token; None: the queue was full."""
        prompt = [self.draw.randrange(5, self.options.vocabulary) for _ in range(self.options.prompt_tokens)]
        fields = {"prompt": prompt, "max_tokens": self.options.output_tokens, "ignore_eos": True, "temperature": 0}
        fields["return_token_ids"] = True  # a token may have no text of its own
        body = json.dumps({**fields, "stream": True}).encode()
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEYS[tenant]}\r\n"
            head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            status = int((await reader.readline()).split()[1])
            if status == 429:
                return None
            first, tail = None, b""
            while data := await reader.read(1 << 16):
                if first is None and b'"token_ids":[' in data:
                    first = time.monotonic() - begun
                tail = (tail + data)[-256:]
            if status != 200 or first is None or b"data: [DONE]" not in tail:
                raise RuntimeError(f"{tenant}: {status}, the end is {tail!r}")
            return first
        finally:
            writer.close()

    async def capacity(self) -> float:
        """Requests a second, of a closed loop of as many clients as keep the server busy."""
        ends = time.monotonic() + self.options.warm_seconds
        done = 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < ends:
                await self.ask("large")
                done += 1

        begun = time.monotonic()
        await asyncio.gather(*[client() for _ in range(self.options.clients)])
        return done / (time.monotonic() - begun)

    async def arrivals(self, tenant: str, rate: float, seconds: float) -> list[float | None]:
        """Nobody waits for an earlier answer."""
        begun = at = time.monotonic()
        tasks = []
        while (at := at + self.draw.expovariate(rate)) < begun + seconds:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(tenant)))
        return list(await asyncio.gather(*tasks))


def large_tenant(port: int, options: argparse.Namespace, seed: int, rate: float, seconds: float) -> list[float | None]:
    return asyncio.run(Client(port, options, seed).arrivals("large", rate, seconds))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(port: int, options: argparse.Namespace, other: ProcessPoolExecutor) -> dict[str, Any]:
    client = Client(port, options, options.seed)
    capacity = await client.capacity()
    large = options.load * capacity
    small = large / options.times
    print(f"capacity {capacity:.1f} requests a second; large {large:.1f}, small {small:.2f}", flush=True)
    waits: dict[str, list[float]] = {"alone": [], "beside": []}
    refused = {"small": 0, "large": 0}
    asked = 0
    for turn in range(options.repeat):
        waits["alone"] += [wait for wait in await client.arrivals("small", small, options.seconds) if wait is not None]
        others = asyncio.get_running_loop().run_in_executor(
            other, large_tenant, port, options, options.seed + 1 + turn, large, options.seconds + 2
        )
        await asyncio.sleep(1)  # until the large tenant has all there is
        beside = await client.arrivals("small", small, options.seconds)
        waits["beside"] += [wait for wait in beside if wait is not None]
        refused["small"] += beside.count(None)
        refused["large"] += (await others).count(None)
        asked += len(await others)
    report: dict[str, Any] = {"capacity": capacity, "small": small, "large": large, "refused": refused, "asked": asked}
    for name, values in waits.items():
        report[name] = {"requests": len(values)}
        report[name] |= {f"p{int(100 * share)}_ms": 1000 * percentile(values, share) for share in (0.5, 0.9, 0.99)}
    report["p99_ratio"] = report["beside"]["p99_ms"] / report["alone"]["p99_ms"]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volley", default="build/cpu/bin/volley")
    parser.add_argument("--vocabulary", type=int, default=1000, help="prompts are of tokens below")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--times", type=float, default=20)
    parser.add_argument("--load", type=float, default=2)
    parser.add_argument("--clients", type=int, default=64, help="to measure what the server can answer")
    parser.add_argument("--warm-seconds", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of each turn")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("engine", nargs="*", help="options of the server, behind --")
    options = parser.parse_args()
    server = Server(options)
    try:
        with ProcessPoolExecutor(1) as other:
            other.submit(int).result()  # it exists before anything is measured
            report = asyncio.run(measure(server.port, options, other))
    finally:
        server.process.terminate()
        server.process.wait(timeout=60)
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
