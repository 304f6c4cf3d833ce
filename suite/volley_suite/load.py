"""Loads: so many requests open at once, or so many started a second."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from .errors import SuiteError


@dataclass(frozen=True)
class Load:
    concurrency: int = 0  # requests open at once; 0: rate
    rate: float = 0.0  # requests started a second, at the moments of a Poisson process

    @property
    def name(self) -> str:
        return f"{self.concurrency}" if self.concurrency else f"{self.rate:g}/s"

    @property
    def most_open(self) -> int:
        return self.concurrency or 1024


def parse_loads(text: str) -> list[Load]:
    """ "1,8,2.5/s": concurrencies and rates."""
    loads = []
    for part in text.split(","):
        if re.fullmatch(r"[1-9]\d{0,4}", part):
            loads.append(Load(concurrency=int(part)))
        elif re.fullmatch(r"\d+(\.\d+)?/s", part) and float(part[:-2]) > 0:
            loads.append(Load(rate=float(part[:-2])))
        else:
            raise SuiteError(f"--loads: {part!r} is neither a number of open requests (8) nor a rate (2.5/s).")
    if len(set(loads)) < len(loads):
        raise SuiteError("--loads names a load twice.")
    return loads


def poisson_starts(rate: float, count: int, seed: int) -> list[float]:
    """Seconds from the begin; the first request starts at once."""
    draw = random.Random(seed)
    starts, now = [], 0.0
    for _ in range(count):
        starts.append(now)
        now += draw.expovariate(rate)
    return starts


async def run_load(
    load: Load, jobs: Sequence[int], seed: int, work: Callable[[int], Coroutine[None, None, None]]
) -> None:
    """Calls `work` for each job. An exception of one ends all."""
    async with asyncio.TaskGroup() as group:
        if load.concurrency:
            waiting = deque(jobs)

            async def worker() -> None:
                while waiting:
                    await work(waiting.popleft())

            workers = [group.create_task(worker()) for _ in range(min(load.concurrency, len(jobs)))]
            try:
                if workers:
                    await asyncio.wait(workers)
            finally:
                waiting.clear()  # a request that ends as it is cancelled may swallow that: its worker then takes no other
            return
        begin = time.perf_counter()
        tasks: list[asyncio.Task[None]] = []
        for job, start in zip(jobs, poisson_starts(load.rate, len(jobs), seed), strict=True):
            await asyncio.sleep(max(0.0, begin + start - time.perf_counter()))
            tasks.append(group.create_task(work(job)))  # kept: the loop holds tasks weakly
