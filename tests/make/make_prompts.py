"""Writes the prompt sets of the tests from the pocket tasks (train/pocket/tasks.py), with seeds that no training run used.

    python3 tests/make/make_prompts.py

tests/data/mixed_prompts.jsonl: 300 prompts of all tasks. tests/data/word_problems.jsonl: 500 word problems with their answers.
tests/data/pocket_tasks.jsonl: 40 of each task, with what suite/ judges answers by. models/pocket/prompts.jsonl: 64 prompts of all
tasks, which `volley bench` takes for the pocket pair.
Each line is also a request that `volley generate --input` and `volley bench --input` take as it is.
"""
from __future__ import annotations

import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "train" / "pocket"))
import tasks  # noqa: E402


def write(path, rows):
    path = ROOT / path
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


def code_test(answer):
    """A program that compares the answer's function with the right one."""
    source = answer.removeprefix("```python\n").removesuffix("\n```")
    name = source[len("def "):source.index("(")]
    # Called with a list, or with a number where only that works.
    return name, f"""asked = {name}
{source}
for value in ([3, 1, 12, 40, 7, 20, 16, 5, 9], [6], 2, 5):
    try:
        right = {name}(value)
    except TypeError:
        continue
    assert asked(value) == right, value
"""


def judged(r, n):
    for task, (draw, _) in tasks.TASKS.items():
        for _ in range(n):
            prompt, answer = draw(r)
            row = {"task": task, **request(prompt)}
            if task in ("word", "calc"):
                row |= {"judge": "number", "expected": tasks.expected_answer(answer)}
            elif task == "json":
                row |= {"judge": "json", "expected": json.loads(answer)}
            elif task == "list":
                row |= {"judge": "text", "expected": answer}
            elif task == "code":
                name, test = code_test(answer)
                row |= {"judge": "code", "entry_point": name, "test": test}
            yield row


if __name__ == "__main__":
    write("tests/data/mixed_prompts.jsonl", mixed(random.Random(20_260_101), 300))
    write("tests/data/word_problems.jsonl", words(random.Random(20_260_102), 500))
    write("tests/data/pocket_tasks.jsonl", judged(random.Random(20_260_103), 40))
    # Without max_tokens: `volley bench --output-tokens` says it.
    pocket = ({"messages": row["messages"]} for row in mixed(random.Random(20_260_104), 64))
    write("models/pocket/prompts.jsonl", pocket)
