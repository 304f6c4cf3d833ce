"""Every dataset in its published layouts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from conftest import DATA, POCKET
from volley_suite import tasks
from volley_suite.code import program
from volley_suite.errors import SuiteError
from volley_suite.files import read_rows
from volley_suite.sandbox import Limits, run
from volley_suite.tasks import Sample


def _load(name: str, file: str) -> list[Sample]:
    return tasks.load(name, DATA / file, 0)[0].samples


def test_gsm8k() -> None:
    samples = _load("gsm8k", "gsm8k_test.jsonl")
    assert [sample.expected for sample in samples] == ["18", "3", "70000", "540"]
    assert "ducks" in samples[0].messages[0]["content"] and samples[0].judge == "number"


def test_math500() -> None:
    samples = _load("math500", "math500.jsonl")
    assert [(sample.judge, sample.expected) for sample in samples] == [("math", "\\frac{3}{4}"), ("math", "(-3,3)")]


def test_humaneval_accepts_its_own_solutions_and_no_others() -> None:
    rows = read_rows(DATA / "HumanEval.jsonl.gz")
    for row, sample in zip(rows, _load("humaneval", "HumanEval.jsonl.gz"), strict=True):
        assert sample.code is not None
        right = row["prompt"] + row["canonical_solution"]
        # The answer's function alone: imports and helpers are the prompt's.
        alone = right[right.index(f"def {row['entry_point']}") :]
        for text in (f"```python\n{right}\n```", f"So:\n```python\n{alone}\n```"):
            outcome = run(program(sample.code, text, False), Limits())
            assert outcome.passed, (row["task_id"], outcome.why)
        assert run(program(sample.code, row["canonical_solution"], True), Limits()).passed
        assert not run(program(sample.code, "```python\npass\n```", False), Limits()).passed
        assert not run(program(sample.code, "    return None\n", True), Limits()).passed


@pytest.mark.parametrize("file", ["mbpp.jsonl", "sanitized-mbpp.json"])
def test_mbpp_accepts_its_own_solutions_and_no_others(file: str) -> None:
    for row, sample in zip(read_rows(DATA / file), _load("mbpp", file), strict=True):
        assert sample.code is not None and sample.code.entry_point in ("double_all", "circle_area")
        assert row["test_list"][0] in sample.messages[0]["content"]
        assert run(program(sample.code, f"```python\n{row['code']}\n```", False), Limits()).passed
        assert not run(program(sample.code, "I cannot say.", False), Limits()).passed


def test_mt_bench_has_turns() -> None:
    samples = _load("mt-bench", "question.jsonl")
    assert [sample.turns for sample in samples] == [2, 2] and samples[1].follow_ups == ("Compute 9 * 8.",)
    assert samples[0].judge is None


def test_alpaca_adds_the_input() -> None:
    samples = _load("alpaca", "alpaca_data.json")
    assert samples[0].messages[0]["content"] == "Name three colours of a sunset."
    assert samples[1].messages[0]["content"] == "Sort these numbers.\n\n4, 1, 3"


def test_mmlu_in_both_layouts(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "a_test.csv").write_bytes((DATA / "mmlu_test.csv").read_bytes())
    (folder / "b_test.csv").write_bytes((DATA / "mmlu_test.csv").read_bytes())
    samples = tasks.load("mmlu", folder, 0)[0].samples
    assert [sample.expected for sample in samples] == ["B", "A", "B", "A"]
    assert "C) 32, about" in samples[1].messages[0]["content"]
    table = {"question": ["Which is prime?"], "subject": ["maths"], "choices": [["21", "23", "25", "27"]], "answer": [1]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "test.parquet")
    (sample,) = tasks.load("mmlu", tmp_path / "test.parquet", 0)[0].samples
    assert sample.expected == "B" and "B) 23" in sample.messages[0]["content"]


def test_sharegpt_takes_first_questions_and_lengths() -> None:
    samples = _load("sharegpt", "sharegpt.json")
    assert [sample.messages[0]["content"][:12] for sample in samples] == ["What is 12 +", "Tell me a st"]
    assert samples[1].max_tokens == 27


def test_pocket_tasks_are_told_apart() -> None:
    loaded = tasks.load("pocket", POCKET, 3)
    assert [task.name for task in loaded] == [f"pocket-{name}" for name in
                                             ("word", "calc", "json", "code", "list", "story", "about")]
    assert all(len(task.samples) == 3 for task in loaded)
    assert [task.samples[0].judge for task in loaded] == ["number", "number", "json", "code", "text", None, None]


def test_random_is_reproducible() -> None:
    shape = tasks.Shape(input_words=20, output_tokens=7, seed=3)
    samples = tasks.random_samples(shape, 4)
    assert samples == tasks.random_samples(shape, 4) and samples[0] != samples[1]
    assert len(samples[0].messages[0]["content"].split()) == 20
    assert samples[0].max_tokens == 7 and samples[0].ignore_eos


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("gsm8k", "a.jsonl", '{"question": "q", "answer": "none"}\n', "row 1: \"answer\" has no number"),
        ("gsm8k", "a.jsonl", '{"question": "q"}\n', "row 1: there is no text \"answer\""),
        ("gsm8k", "a.jsonl", '{"question": \n', "line 1 is not JSON"),
        ("gsm8k", "a.jsonl", "", "holds no rows"),
        ("gsm8k", "a.jsonl", "[1]\n", "a list of objects"),
        ("gsm8k", "a.txt", "x", "the name must end in"),
        ("gsm8k", "a.jsonl.gz", "x", "cannot be read"),
        ("gsm8k", "a.parquet", "x", "cannot be read"),
        ("mmlu", "a.csv", '"q",1,2,3,A\n', "does not have 6 columns"),
        ("mmlu", "a.csv", '"q",1,2,3,4,E\n', "from A to D"),
        ("jsonl", "a.jsonl", '{"prompt": "x", "judge": "taste", "expected": "x"}\n', "\"judge\" is 'taste'"),
        ("jsonl", "a.jsonl", '{"prompt": "x", "judge": "code"}\n', "no text \"test\""),
        ("sharegpt", "a.json", '[{"conversations": []}]', "nothing that can be asked"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, file: str, text: str, message: str) -> None:
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(SuiteError) as caught:
        tasks.load(name, path, 0)
    assert message in str(caught.value) and file in str(caught.value)


def test_a_missing_file_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="openai/grade-school-math"):
        tasks.find_file("gsm8k", None, None)
    with pytest.raises(SuiteError, match="holds none of"):
        tasks.find_file("math500", None, tmp_path)
    with pytest.raises(SuiteError, match="There is no"):
        tasks.find_file("gsm8k", tmp_path / "x.jsonl", None)
    assert tasks.find_file("humaneval", None, DATA) == DATA / "HumanEval.jsonl.gz"


def test_lines_with_unusual_line_ends_and_compression(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(("\ufeff" + json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False) + "\r\n\n").encode()))
    assert read_rows(path) == [{"prompt": "a\u2028b"}]
