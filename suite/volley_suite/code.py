"""The program that judges an answer which is code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .answers import after_thoughts

if TYPE_CHECKING:
    from .tasks import CodeTest

_BLOCK = re.compile(r"```[ \t]*(?:[A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
# Where a base model that continues a function has begun with something else (HumanEval's own stop strings).
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")


def extract(text: str, entry_point: str) -> str:
    """The code of a chat's answer: the last block that defines the function, else the first block, else all of it."""
    text = after_thoughts(text)
    blocks = [match.group(1) for match in _BLOCK.finditer(text)]
    if not blocks:
        return text
    defines = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(entry_point)}\b", re.MULTILINE)
    with_function = [block for block in blocks if entry_point and defines.search(block)]
    return with_function[-1] if with_function else blocks[0]


def program(test: CodeTest, text: str, continues_prompt: bool) -> str:
    """`continues_prompt`: the text goes on where the prompt ended, as completions do."""
    if continues_prompt:
        return test.before + text + "\n\n" + test.after
    return test.before + "\n\n" + extract(text, test.entry_point) + "\n\n" + test.after
