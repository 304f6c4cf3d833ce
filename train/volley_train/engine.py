"""What the engine does for the trainer: the target's answers, and the served tokens of a drafter, which must be those of
plain decoding."""
from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .data import Answer, Answers, Prompt, loop_start

Lines = list[dict[str, Any]]


def loops(ids: list[int]) -> bool:
    return loop_start(ids) + 64 <= len(ids)


def request(ids: list[int], limit: int, temperature: float, seed: int) -> str:
    return json.dumps({"prompt_ids": ids, "max_tokens": limit, "temperature": temperature, "seed": seed}) + "\n"


def checked(line: str) -> dict[str, Any]:
    answer = json.loads(line)
    if "error" in answer:
        raise ValueError(f"the engine refused a request: {answer['error']}")
    return answer


def answer(program: str, target: str, prompts: list[Prompt], seed: int, deadline: float, more: list[str]) -> Iterator[Answer]:
    """Plain decoding's answers in the order of `prompts`. Past `deadline` (time.time()) no further request starts."""
    command = [program, "generate", "--model", target, "--draft", "none", "--input", "-", "--generation-config", "none", *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def ask() -> None:
            try:
                with process.stdin as asked:
                    for i, p in enumerate(prompts):
                        if time.time() > deadline:
                            return
                        asked.write(request(p.ids, p.limit, p.temperature, seed + i))
            except BrokenPipeError:
                pass  # the program's status says why

        threading.Thread(target=ask, daemon=True).start()
        for prompt, line in zip(prompts, process.stdout):
            ids = checked(line)["token_ids"]
            yield Answer(prompt, ids, loops(ids))
    if process.returncode:
        raise ValueError(f"{program} ended with status {process.returncode}: see what it printed above.")


def pick(held: Answers, each: int) -> list[int]:
    """The first `each` conversations of each domain and temperature."""
    found: dict[tuple[int, float], list[int]] = defaultdict(list)
    for i in range(len(held)):
        found[int(held.domain[i]), round(float(held.temperature[i]), 3)].append(i)
    return [i for group in found.values() for i in group[:each]]


def generate(program: str, target: str, draft: str, requests: list[str], folder: Path, more: list[str]) -> Lines:
    folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "requests.jsonl", folder / f"{Path(draft).name}.jsonl"
    asked.write_text("".join(requests))
    command = [program, "generate", "--model", target, "--draft", draft, "--input", str(asked), "--output", str(answered)]
    subprocess.run(command + more, check=True, stdin=subprocess.DEVNULL)
    return [checked(line) for line in answered.read_text().splitlines()]


def serve(program: str, target: str, draft: str, held: Answers, which: list[int], tokens: int, folder: Path,
          more: list[str]) -> tuple[dict[str, Any], list[Answer]]:
    """Tokens a step of each domain, how many answers differ from plain decoding's, and the answers."""
    requests = [request(held.conversation(i)[0][:held.prompt[i]].tolist(), tokens, round(float(held.temperature[i]), 3), 7)
                for i in which]
    drafted = generate(program, target, draft, requests, folder, [*more, "--verify", "full"])
    plain = generate(program, target, "none", requests, folder, more)
    steps: dict[str, list[int]] = defaultdict(list)
    answers, different = [], 0
    for i, ours, theirs in zip(which, drafted, plain):
        different += ours["token_ids"] != theirs["token_ids"]
        ids, prompt = ours["token_ids"], held.conversation(i)[0][:held.prompt[i]].tolist()
        looped = loops(ids)
        t, domain = round(float(held.temperature[i]), 3), held.domains[held.domain[i]]
        steps[f"{domain}{' (looping)' if looped else ''} T={t:.1f}"] += ours["tokens_per_step"]
        answers.append(Answer(Prompt(prompt, t, tokens, domain), ids, looped))
    means = {name: round(sum(taken) / len(taken), 3) for name, taken in sorted(steps.items()) if taken}
    return {"answers": len(which), "different from plain decoding": different, "tokens a step": means}, answers
