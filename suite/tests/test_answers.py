"""Judging on answers made by hand: right, wrong, malformed."""

from __future__ import annotations

import pytest
from volley_suite.answers import is_right, last_number, letter_of
from volley_suite.code import extract, program
from volley_suite.tasks import CodeTest


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18 + 2 = 20\n#### 20", "20"),
        ("#### $1,234.50 in all", "$1,234.50"),
        ("#### 3\nNo, it is more.\n#### 4", "4"),
        ("The answer is \\boxed{1{,}000}, not 7", "1000"),
        ("\\boxed{70\\,000}", "70000"),
        ("\\boxed{x = 5 \\text{ (2 kids)}}", "5"),
        ("\\boxed{\\text{5}}", "5"),
        ("so \\boxed{72} of 100", "72"),
        ("They pay $5. Then 3 more, so 8.", "8"),
        ("It is -3.", "-3"),
        ("5-3", "3"),
        ("about .5 of it", ".5"),
        ("\\boxed{12", "12"),
        ("no number at all", None),
        ("", None),
        ("####", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("judge", "expected", "text", "right"),
    [
        ("number", "18", "She makes $18.00 a day.\n#### 18.00", True),
        ("number", "1234", "#### 1,234", True),
        ("number", "18", "#### 180", False),
        ("number", "18", "eighteen", False),
        ("number", "18", "<think>Is it 18?</think>It is 17.", False),
        ("number", "70000", "He made $70,000.", True),
        ("math", "\\frac{3}{4}", "It is $0.75$, so \\boxed{\\frac34}.", True),
        ("math", "\\frac{3}{4}", "\\boxed{0.75}", True),
        ("math", "\\frac{3}{4}", "\\boxed{\\frac{4}{3}}", False),
        ("math", "(-3,3)", "Therefore \\boxed{(-3, 3)}.", True),
        ("math", "(-3,3)", "\\boxed{[-3,3]}", False),
        ("math", "x^2+2x+1", "\\boxed{(x+1)^2}", True),
        ("math", "\\frac{3}{4}", "\\boxed{", False),
        ("math", "\\frac{3}{4}", "", False),
        ("math", "2", "\\boxed{9^{9^{9^{9}}}}", False),  # neither hangs nor raises
        ("choice", "B", "23 has no divisors.\nAnswer: B", True),
        ("choice", "B", "Answer: A. Or rather, Answer: (B)", True),
        ("choice", "B", "**Answer:** B", True),
        ("choice", "B", " (B) ", True),
        ("choice", "B", "The answer is $\\boxed{\\text{B}}$.", True),
        ("choice", "C", "\\boxed{\\textbf{C}}", True),
        ("choice", "C", "Answer: \\text{C}", True),
        ("choice", "B", "Be careful: A or C", False),
        ("choice", "B", "", False),
        ("text", "1, 3, 4", " 1, 3, 4\n", True),
        ("text", "1, 3, 4", "1,3,4", False),
        ("json", '{"a": [1]}', '{"a": [true]}', False),
        ("json", '{"a": [1]}', '{"a": [1.0]}', True),
        ("json", '{"a": [1, 2]}', '```json\n{ "a":[1,2] }\n```', True),
        ("json", '{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ("json", '{"a": [1, 2]}', '{"a": [1, 2}', False),
    ],
)
def test_is_right(judge: str, expected: str, text: str, right: bool) -> None:
    assert is_right(judge, expected, text) is right


def test_letters_in_words_are_no_choice() -> None:
    assert letter_of("All of these are possible. Can you say more?") is None


def test_code_is_taken_from_its_block() -> None:
    two = "First:\n```python\nimport re\n```\nThen:\n```py\ndef f(x):\n    return x\n```\nDone."
    assert extract(two, "f") == "def f(x):\n    return x"
    assert extract(two, "g") == "import re"
    assert extract("def f(x): return x", "f") == "def f(x): return x"
    assert extract("```python\ndef f(x):\n    return 1", "f") == "def f(x):\n    return 1", "an answer that was cut short"
    assert extract("<think>```python\ndef f(): 1\n```</think>```\ndef f(): 2\n```", "f") == "def f(): 2"
    test = CodeTest("import math\n", "assert f(1)", "f")
    assert program(test, "```\ndef f(x): return 1\n```", False).count("```") == 0
    assert program(CodeTest("def f(x):\n", "assert f(1)", "f"), "    return x", True).startswith("def f(x):\n    return x\n")
