"""Is an answer right? The rules that the field's tools use, for each kind of answer."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*)?\.?\d+")
_STYLE = r"(?:\\(?:text|textbf|mathbf|mathrm)\{)?"
_LETTER = (
    re.compile(r"\\boxed\{\s*" + _STYLE + r"\s*\(?([A-D])\b"),
    re.compile(r"(?i:answer)(?:\s+is)?\s*:?\s*\**\s*\(?\$?" + _STYLE + r"([A-D])\b"),
)


def after_thoughts(text: str) -> str:
    """What follows the thoughts of a model whose server leaves them in the text."""
    return text.rpartition("</think>")[2]


def decimal_of(text: str) -> Decimal | None:
    """The number that `text` is: "1,234.50" and "$18" too."""
    digits = text.strip().strip("*").replace(",", "").replace("$", "").rstrip(".")
    try:
        value = Decimal(digits)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def boxed(text: str) -> str | None:
    """The content of the last \\boxed{…}, with balanced braces."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return None  # it was cut short


def solution_number(solution: str) -> str | None:
    """The number behind #### of a published GSM8K solution."""
    _, mark, rest = solution.rpartition("####")
    found = _NUMBER.search(rest)
    return found.group() if mark and found else None


def _numbers_of_latex(text: str) -> str:
    """Without marks of thousands, and without words that stand beside a number: "70{,}000", "5 \\text{ (2 kids)}"."""
    joined = re.sub(r"(?<=\d)(?:\{,\}|\\[,! ])(?=\d)", "", text)
    without_words = re.sub(r"\\text\{[^{}]*\}", " ", joined)
    return without_words if _NUMBER.search(without_words) else joined


def last_number(text: str) -> str | None:
    """GSM8K's extraction: behind the last ####, else in the last \\boxed{}, else the last number of all."""
    marked = solution_number(text)
    if marked is not None:
        return marked
    in_box = boxed(text)
    where = _numbers_of_latex(text if in_box is None else in_box)
    found = list(_NUMBER.finditer(where))
    if not found:
        return None
    number = found[-1].group()
    # "5-3" is a difference: its 3 is not negative.
    before = where[: found[-1].start()].rstrip()
    return number.lstrip("-") if number.startswith("-") and before[-1:].isdigit() else number


def number_is_right(expected: str, text: str) -> bool:
    answer = last_number(text)
    wanted = decimal_of(expected)
    return answer is not None and wanted is not None and decimal_of(answer) == wanted


def math_is_right(expected: str, text: str) -> bool:
    """Equality of mathematical expressions, by math-verify. Main thread only: its limits of time are alarms."""
    import math_verify

    gold = math_verify.parse(f"\\boxed{{{expected}}}")
    in_box = boxed(text)
    answer = math_verify.parse(text if in_box is None else f"\\boxed{{{in_box}}}")
    return bool(gold) and bool(answer) and bool(math_verify.verify(gold, answer))


def letter_of(text: str) -> str | None:
    """The last choice that the answer states; a lone letter counts."""
    lone = text.strip().strip("().*")
    if lone in tuple("ABCD"):
        return lone
    for pattern in _LETTER:
        found = pattern.findall(text)
        if found:
            return str(found[-1])
    return None


def _same_json(one: Any, other: Any) -> bool:
    """As ==, but true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def json_is_right(expected: str, text: str) -> bool:
    """The same value, however it is written; a code block around it does not matter."""
    body = re.sub(r"^```(?:json)?\n|\n?```$", "", text.strip())
    try:
        return _same_json(json.loads(body), json.loads(expected))
    except ValueError:
        return False


def is_right(judge: str, expected: str, text: str) -> bool:
    """For every kind of answer but code."""
    text = after_thoughts(text)
    if judge == "number":
        return number_is_right(expected, text)
    if judge == "math":
        return math_is_right(expected, text)
    if judge == "choice":
        return letter_of(text) == expected
    if judge == "json":
        return json_is_right(expected, text)
    return text.strip() == expected.strip()
