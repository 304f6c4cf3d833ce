"""The engine's own acceptance: the served tokens, which must be those of plain decoding, and the judge's word on them."""
from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from .data import Answers
from .decoding import Answer, Prompt, loop_start

Lines = list[dict[str, Any]]


def pick(held: Answers, each: int) -> list[int]:
    """The first `each` conversations of each domain and temperature."""
    found: dict[tuple[int, float], list[int]] = defaultdict(list)
    for i in range(len(held)):
        found[int(held.domain[i]), round(float(held.temperature[i]), 3)].append(i)
    return [i for group in found.values() for i in group[:each]]


def generate(program: str, target: str, draft: str, requests: Lines, folder: Path, more: list[str]) -> Lines:
    folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "requests.jsonl", folder / f"{Path(draft).name}.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in requests))
    command = [program, "generate", "--model", target, "--draft", draft, "--input", str(asked), "--output", str(answered)]
    subprocess.run(command + more, check=True, stdin=subprocess.DEVNULL)
    lines = [json.loads(line) for line in answered.read_text().splitlines()]
    if failed := next((line for line in lines if "error" in line), None):
        raise ValueError(f"the engine refused a request: {failed['error']}")
    return lines


def serve(program: str, target: str, draft: str, held: Answers, which: list[int], tokens: int, folder: Path,
          more: list[str]) -> tuple[dict[str, Any], list[Answer]]:
    """Tokens a step of each domain, how many answers differ from plain decoding's, and the answers."""
    requests = [{"prompt_ids": held.conversation(i)[0][:held.prompt[i]].tolist(), "max_tokens": tokens, "seed": 7,
                 "temperature": round(float(held.temperature[i]), 3)} for i in which]
    drafted = generate(program, target, draft, requests, folder, [*more, "--verify", "full"])
    plain = generate(program, target, "none", requests, folder, more)
    steps: dict[str, list[int]] = defaultdict(list)
    answers, different = [], 0
    for i, ours, theirs in zip(which, drafted, plain):
        different += ours["token_ids"] != theirs["token_ids"]
        ids, prompt = ours["token_ids"], held.conversation(i)[0][:held.prompt[i]].tolist()
        looped = loop_start(ids) + 64 <= len(ids)
        t, domain = round(float(held.temperature[i]), 3), held.domains[held.domain[i]]
        steps[f"{domain}{' (looping)' if looped else ''} T={t:.1f}"] += ours["tokens_per_step"]
        answers.append(Answer(Prompt(prompt, t, tokens, domain), ids, looped))
    means = {name: round(sum(taken) / len(taken), 3) for name, taken in sorted(steps.items()) if taken}
    return {"answers": len(which), "different from plain decoding": different, "tokens a step": means}, answers
