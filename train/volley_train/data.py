"""Answers as a file, and packed into rows of one length."""
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .blocks import Rows

KEPT_OF_LOOPS = 32  # tokens of an answer's repetition that stay in the data
PERIOD = 32  # the longest repetition that is looked for


@dataclass
class Prompt:
    ids: list[int]
    temperature: float = 0.0
    limit: int = 320  # tokens of the answer
    domain: str = ""
    held_out: bool = False


@dataclass
class Answer:
    prompt: Prompt
    ids: list[int]  # with the stop token, if it came
    looped: bool


def loop_start(ids: list[int]) -> int:
    """Where what repeats at the end of `ids` begins for the second time."""
    a, best = np.array(ids), len(ids)
    for p in range(1, min(PERIOD, len(a) - 1) + 1):
        differs = np.flatnonzero(a[p:] != a[:-p])
        best = min(best, (int(differs[-1]) + 1 if len(differs) else 0) + p)
    return best


GRAM = 13  # tokens in a row that count as copied
_MIX = np.random.default_rng(0).integers(1, 1 << 62, GRAM, dtype=np.uint64) | np.uint64(1)


def grams(ids: list[int]) -> np.ndarray:
    """A number of each GRAM tokens in a row."""
    if len(ids) < GRAM:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(np.array(ids, np.uint64) + np.uint64(1), GRAM)
    return (windows * _MIX).sum(1, dtype=np.uint64)


def held_grams(prompts: list[list[int]]) -> np.ndarray:
    """Those of held-out prompts, but for what several share: templates and instructions."""
    found, counts = np.unique(np.concatenate([np.unique(grams(ids)) for ids in prompts] or [np.zeros(0, np.uint64)]),
                              return_counts=True)
    return found[counts == 1]


def save_answers(path: Path, answers: list[Answer], facts: dict[str, Any], whole: bool = False) -> None:
    """Conversations one after the other: `ids`, of each conversation its `prompt` and `total` tokens, its temperature
    and domain; `facts` (target, template hash, seeds) as metadata. What
    repeats itself is cut short, unless they are to be kept whole."""
    domains = sorted({a.prompt.domain for a in answers})
    ids, prompt, total = [], [], []
    for a in answers:
        answer = a.ids[:loop_start(a.ids) + KEPT_OF_LOOPS] if a.looped and not whole else a.ids
        ids += [*a.prompt.ids, *answer]
        prompt.append(len(a.prompt.ids))
        total.append(len(a.prompt.ids) + len(answer))
    save_file({"ids": torch.from_numpy(np.array(ids, np.int32)), "prompt": torch.tensor(prompt, dtype=torch.int32),
               "total": torch.tensor(total, dtype=torch.int32),
               "temperature": torch.tensor([a.prompt.temperature for a in answers]),
               "domain": torch.tensor([domains.index(a.prompt.domain) for a in answers], dtype=torch.int32),
               "looped": torch.tensor([a.looped for a in answers])},
              path.with_suffix(".tmp"), metadata={"domains": json.dumps(domains), "facts": json.dumps(facts)})
    path.with_suffix(".tmp").rename(path)


class Answers:
    def __init__(self, path: Path) -> None:
        with safe_open(path, "pt") as file:
            self.domains = json.loads(file.metadata()["domains"])
            self.facts = json.loads(file.metadata()["facts"])
            self.ids, self.prompt, self.total, self.temperature, self.domain, self.looped = (
                file.get_tensor(name).numpy() for name in ("ids", "prompt", "total", "temperature", "domain", "looped"))
        self.start = np.concatenate(([0], self.total.cumsum()))

    def __len__(self) -> int:
        return len(self.total)

    def conversation(self, i: int) -> tuple[np.ndarray, int]:
        """Tokens, and how many of them are the prompt's."""
        return self.ids[self.start[i]:self.start[i + 1]], int(self.prompt[i])


def pack(conversations: Iterable[tuple[np.ndarray, int]], length: int) -> Rows:
    """Whole conversations to rows of `length` tokens, the longest first into the fullest row that has room. Longer ones
    are cut."""
    items = sorted(((ids[:length], p) for ids, p in conversations), key=lambda item: -len(item[0]))
    by_room: list[list[int]] = [[] for _ in range(length + 1)]
    rows: list[list[int]] = []
    for i, (ids, _) in enumerate(items):
        room = next((room for room in range(len(ids), min(length, len(ids) + 64) + 1) if by_room[room]), None)
        if room is None:
            room = next((room for room in range(len(ids), length + 1) if by_room[room]), None)
        row = by_room[room].pop() if room is not None else len(rows)
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        by_room[(length if room is None else room) - len(ids)].append(row)
    out = np.zeros((4, len(rows), length), np.int32)
    out[2] = -1
    for r, members in enumerate(rows):
        at = 0
        for number, i in enumerate(members):
            ids, p = items[i]
            part = slice(at, at + len(ids))
            out[0, r, part], out[1, r, part], out[2, r, part] = ids, np.arange(len(ids)), number
            out[3, r, at + p:at + len(ids)] = number + 1
            at += len(ids)
    return Rows(*torch.from_numpy(out))
