"""The run: every task × load × mode, repeats interleaved, each answer into the journal as it comes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from . import code
from .endpoint import Endpoint, Question, Settings, ask
from .journal import Answer, Cell, Journal
from .load import Load, run_load
from .tasks import Sample, Task

_MOST_WARMUP = 8


@dataclass(frozen=True)
class Plan:
    tasks: Sequence[Task]
    loads: Sequence[Load]
    modes: Sequence[str]  # of "off", "on", "served"
    repeats: int
    settings: Settings
    completions: bool = False  # /v1/completions for everything instead of /v1/chat/completions
    warmup: int | None = None  # requests before a measurement; None: as many as are open at once, at most 8
    arrival_seed: int = 1

    def cells(self) -> Iterator[tuple[Task, Load, Cell]]:
        """In the order in which they are measured. Modes change places from one repeat to the next, so that a machine
        that becomes slower or faster favours neither."""
        for repeat in range(self.repeats):
            modes = list(self.modes) if repeat % 2 == 0 else list(reversed(self.modes))
            for task in self.tasks:
                for load in self.loads:
                    for mode in modes:
                        yield task, load, Cell(task.name, load.name, mode, repeat)


def pending(journal: Journal, task: Task, cell: Cell) -> list[int]:
    """Samples of which a turn has no answer yet."""
    return [
        index
        for index, sample in enumerate(task.samples)
        if any(journal.good(cell, index, turn) is None for turn in range(sample.turns))
    ]


async def measure(
    plan: Plan, endpoints: dict[str, Endpoint], journal: Journal, tell: Callable[[str], None]
) -> None:
    """`endpoints`: by mode. What the journal has already is not asked again."""
    for task, load, cell in plan.cells():
        jobs = pending(journal, task, cell)
        if not jobs:
            continue
        measurement = _Measurement(plan, endpoints[cell.mode], journal, task, load, cell)
        await measurement.run(jobs, tell)


class _Measurement:
    def __init__(
        self, plan: Plan, endpoint: Endpoint, journal: Journal, task: Task, load: Load, cell: Cell
    ) -> None:
        self.plan, self.endpoint, self.journal = plan, endpoint, journal
        self.task, self.load, self.cell = task, load, cell
        self.segment = journal.next_segment(cell)
        # A salt of its own: nothing is found in a prefix cache that another measurement left there.
        self.salt = f"suite-{secrets.token_hex(8)}"
        self.begin = 0.0
        self.done = 0

    async def run(self, jobs: Sequence[int], tell: Callable[[str], None]) -> None:
        await self._warm_up(jobs)
        self.begin = time.perf_counter()
        what = f"{self.cell.task}, load {self.cell.load}, speculation {self.cell.mode}, repeat {self.cell.repeat + 1}"

        async def work(sample: int) -> None:
            await self._ask_sample(sample)
            self.done += 1
            tell(f"{what}: {self.done} of {len(jobs)}")

        await run_load(self.load, jobs, self.plan.arrival_seed, work)

    async def _warm_up(self, jobs: Sequence[int]) -> None:
        count = self.plan.warmup if self.plan.warmup is not None else min(self.load.most_open, _MOST_WARMUP)

        async def work(job: int) -> None:
            sample = self.task.samples[jobs[job % len(jobs)]]
            question = self._question(sample, sample.messages, 0, "-warmup")
            await ask(self.endpoint, question, self.plan.settings, Answer(self.cell, -1, 0, -1))

        if count:
            await run_load(Load(concurrency=min(count, _MOST_WARMUP)), range(count), 0, work)

    async def _ask_sample(self, index: int) -> None:
        """All turns of a sample; one that failed ends it, because the next would answer something else."""
        sample = self.task.samples[index]
        messages = list(sample.messages)
        for turn in range(sample.turns):
            if turn > 0:
                messages.append({"role": "user", "content": sample.follow_ups[turn - 1]})
            answer = self.journal.good(self.cell, index, turn)
            if answer is None:
                answer = Answer(self.cell, index, turn, self.segment, start_s=time.perf_counter() - self.begin)
                await ask(self.endpoint, self._question(sample, messages, index, ""), self.plan.settings, answer)
                self.journal.add_answer(answer)
            if answer.error:
                return
            messages.append({"role": "assistant", "content": answer.text})

    def _question(self, sample: Sample, messages: list[dict[str, object]], index: int, salt: str) -> Question:
        prompt = None
        if self.plan.completions:
            texts = [str(message["content"]) for message in messages]
            prompt = sample.prompt if sample.prompt and len(messages) == 1 else "\n\n".join(texts) + "\n"
        continues = prompt is not None and prompt == sample.prompt and sample.code is not None
        return Question(
            messages=list(messages),
            prompt=prompt,
            max_tokens=sample.max_tokens,
            ignore_eos=sample.ignore_eos,
            stop=code.STOPS if continues else (),
            mode=self.cell.mode,
            seed_offset=index,
            cache_salt=self.salt + salt,
        )
