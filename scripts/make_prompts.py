"""Writes the prompt sets of the tests from the pocket tasks (train/tasks.py), with seeds that no training run used.

    python3 scripts/make_prompts.py

tests/data/mixed_prompts.jsonl: 300 prompts of all tasks. tests/data/word_problems.jsonl: 500 word problems with their answers.
Each line is also a request that `volley generate --input` and `volley bench --input` take as it is.
"""
from __future__ import annotations

import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "train"))
import tasks  # noqa: E402


def write(name, rows):
    path = ROOT / "tests" / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def request(prompt):
    return {"prompt": prompt, "messages": [{"role": "user", "content": prompt}], "max_tokens": 160}


def mixed(r, n):
    for _ in range(n):
        task, prompt, _ = tasks.draw(r)
        yield {"task": task, **request(prompt)}


def words(r, n):
    for _ in range(n):
        prompt, answer = tasks.word(r)
        yield {**request(prompt), "expected": tasks.expected_answer(answer)}


if __name__ == "__main__":
    write("mixed_prompts.jsonl", mixed(random.Random(20_260_101), 300))
    write("word_problems.jsonl", words(random.Random(20_260_102), 500))
