"""Writes tests/data/templates: what transformers 5.10.2 with Jinja2 3.1.6 renders (pip install both).

snippets.json: the expressions of expressions.txt and the statements of statements.jsonl with the variables of
variables.json. conversations.json: templates of template_parts.py with random conversations. null stands for an error.
"""
from __future__ import annotations

import json
import random
from pathlib import Path

import jinja2
import template_parts
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).resolve().parent.parent / "data" / "templates"
VERSIONS = ("5.10.2", "3.1.6")
PAIRS_OF_EACH, PAIRS_OF_NEWER = 5, 50
TEMPLATES = 400
CONVERSATIONS = 120
MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None]}}}]},
]


def render(template: str, messages: list, tools: list | None, variables: dict) -> str | None:
    try:
        return render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=True,
                                     **variables)[0][0]
    except Exception:  # whatever Jinja2 and Python raise refuses the messages
        return None


def write_snippets() -> None:
    expressions = (FOLDER / "expressions.txt").read_text().splitlines()
    statements = [json.loads(line) for line in (FOLDER / "statements.jsonl").read_text().splitlines()]
    text = (FOLDER / "variables.json").read_text()
    variables = json.loads(text)
    snippets = [[source, render(source, MESSAGES, None, variables)]
                for source in ["{{ " + expression + " }}" for expression in expressions] + statements]
    write("snippets.json", {"messages": MESSAGES, "variables": text}, "snippets", snippets)


def write_conversations() -> None:
    draw = random.Random(45)
    conversations = [template_parts.conversation(draw) for _ in range(CONVERSATIONS)]
    sources = template_parts.FAMILIES
    templates, pairs = [], []
    while len(templates) < TEMPLATES:
        source = sources[len(templates)] if len(templates) < len(sources) else template_parts.template(draw)
        chosen = draw.sample(range(CONVERSATIONS), PAIRS_OF_EACH)
        rendered = [render(source, *conversations[number]) for number in chosen]
        if rendered.count(None) < PAIRS_OF_EACH:  # others show little
            pairs += [[len(templates), number, text] for number, text in zip(chosen, rendered)]
            templates.append(source)
    for source in template_parts.NEWER_FAMILIES:
        pairs += [[len(templates), number, render(source, *conversations[number])]
                  for number in draw.sample(range(CONVERSATIONS), PAIRS_OF_NEWER)]
        templates.append(source)
    described = [{"messages": json.dumps(messages, ensure_ascii=False), "variables": json.dumps(variables),
                  "tools": json.dumps(tools, ensure_ascii=False) if tools is not None else ""}
                 for messages, tools, variables in conversations]
    write("conversations.json", {"templates": templates, "conversations": described}, "pairs", pairs)


def write(name: str, rest: dict, key: str, rows: list) -> None:
    head = json.dumps(rest, ensure_ascii=False)[:-1]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (FOLDER / name).write_text(f'{head}, "{key}": [\n{lines}\n]}}\n')


def main() -> None:
    versions = (transformers.__version__, jinja2.__version__)
    if versions != VERSIONS:
        raise SystemExit(f"transformers and jinja2 are {versions}: install {VERSIONS}")
    write_snippets()
    write_conversations()


if __name__ == "__main__":
    main()
