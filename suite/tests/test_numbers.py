"""The journal, the plan's order, and the arithmetic, on answers made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from volley_suite.endpoint import Endpoint, Question, Settings, fields_of
from volley_suite.errors import SuiteError
from volley_suite.journal import Answer, Cell, Journal, Verdict
from volley_suite.load import Load, parse_loads, poisson_starts
from volley_suite.suite import Plan, pending
from volley_suite.summary import latency, loops, summarize, throughput, tokens_per_step, wall_s
from volley_suite.tasks import Sample, Task

TASK = Task("t", [Sample([{"role": "user", "content": "a"}], judge="text"),
                  Sample([{"role": "user", "content": "b"}], follow_ups=("c",))])
PLAN = Plan([TASK], [Load(1)], ["off", "on"], 2, Settings())


def _answer(cell: Cell, sample: int, turn: int = 0, **values: object) -> Answer:
    fields: dict[str, object] = {"end_s": 1.0, "ttft_s": 0.5, "last_s": 1.0, "completion_tokens": 11, **values}
    return Answer(cell, sample, turn, **{"segment": 0, **fields})  # type: ignore[arg-type]


def test_modes_change_places_between_repeats() -> None:
    assert [(cell.mode, cell.repeat) for _, _, cell in PLAN.cells()] == [("off", 0), ("on", 0), ("on", 1), ("off", 1)]


def test_a_journal_goes_on_after_any_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    cell = Cell("t", "1", "on", 0)
    journal = Journal(path, {"model": "m"})
    journal.add_answer(_answer(cell, 0, text="ä\ud800"))
    journal.add_answer(_answer(cell, 1))
    journal.add_verdict(Verdict(cell, 0, True, ""))
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = Journal(path, {"model": "m"})
        kept = whole[:cut].count(b"\n")
        assert len(journal.of_cell(cell)) == min(2, max(0, kept - 1))
        assert (cell, 0) in journal.verdicts or kept < 4
        # Sample 1 lacks its second turn whatever is cut.
        assert pending(journal, TASK, cell) == ([1] if kept >= 2 else [0, 1])
        assert journal.next_segment(cell) == (1 if kept >= 2 else 0)
        journal.close()
        assert path.read_bytes().startswith(whole[:cut][: whole[:cut].rfind(b"\n") + 1])


def test_another_plan_or_a_damaged_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    Journal(path, {"model": "m", "loads": ["1"]}).close()
    with pytest.raises(SuiteError, match="its loads is .'1'., now it is .'2'."):
        Journal(path, {"model": "m", "loads": ["2"]})
    path.write_bytes(path.read_bytes() + b'{"kind": "answer"}\n')
    with pytest.raises(SuiteError, match="line 2 is no line of a run"):
        Journal(path, {"model": "m", "loads": ["1"]})


def test_one_run_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", {})
    with pytest.raises(SuiteError, match="another run"):
        Journal(tmp_path / "run.jsonl", {})
    journal.close()
    Journal(tmp_path / "run.jsonl", {}).close()


def test_an_error_is_asked_again_and_its_answer_counts(tmp_path: Path) -> None:
    cell = Cell("t", "1", "on", 0)
    journal = Journal(tmp_path / "run.jsonl", {})
    journal.add_answer(_answer(cell, 0, error="HTTP 500"))
    assert pending(journal, TASK, cell) == [0, 1]
    journal.add_answer(_answer(cell, 0))
    assert pending(journal, TASK, cell) == [1] and len(journal.of_cell(cell)) == 1
    journal.close()


def test_walls_of_segments_add_up() -> None:
    cell = Cell("t", "2", "on", 0)
    answers = [_answer(cell, 0), _answer(cell, 1, start_s=0.5), _answer(cell, 2, segment=1, end_s=2.0)]
    assert wall_s(answers) == 3.5
    assert throughput(answers) == pytest.approx(33 / 3.5)
    assert throughput([*answers, _answer(cell, 3, error="x", end_s=3.5, segment=2)]) == pytest.approx(33 / 7)


def test_tokens_per_step() -> None:
    cell = Cell("t", "1", "on", 0)
    exact = [_answer(cell, 0, steps=[4, 6]), _answer(cell, 1, steps=[5, 5], error="x"),
             _answer(cell, 2, completion_tokens=1, steps=[])]
    assert tokens_per_step(exact) == (5.0, True)
    assert tokens_per_step([_answer(cell, 0, accepted_tokens=8)]) == (5.0, False)
    assert tokens_per_step([_answer(cell, 0, accepted_tokens=10)]) == (10.0, False)
    assert tokens_per_step([_answer(cell, 0)]) == (None, False)


def test_what_loops() -> None:
    sentence = "The mouse went home and said that it was late. "
    assert loops("A story. " + sentence * 15) and loops("ha" * 300)
    assert not loops(sentence * 7) and not loops("".join(f"{i}. {sentence}" for i in range(20))) and not loops("")


def test_percentiles_are_nearest_ranks() -> None:
    found = latency([value / 1000 for value in range(100, 0, -1)])
    assert found is not None and found.mean == pytest.approx(50.5)
    assert [round(value) for value in found.percentiles.values()] == [50, 90, 95, 99]
    assert latency([]) is None


def test_rows_compare_the_same_repeat(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", {})
    for repeat, (off_s, on_s) in enumerate([(4.0, 2.0), (9.0, 3.0)]):
        for mode, seconds in (("off", off_s), ("on", on_s)):
            cell = Cell("t", "1", mode, repeat)
            journal.add_answer(_answer(cell, 0, end_s=seconds, text="same", accepted_tokens=0, rejected_tokens=1))
            journal.add_answer(_answer(cell, 1, end_s=0.1, text=mode))
            journal.add_verdict(Verdict(cell, 0, mode == "on", ""))
    off, on = summarize(PLAN, journal)
    assert on.speedup is not None
    assert (on.speedup.lowest, on.speedup.median, on.speedup.highest) == pytest.approx((2.0, 2.5, 3.0))
    assert (on.same, on.compared) == (2, 4) and off.compared == 0
    assert (off.accuracy, on.accuracy, on.judged) == (0.0, 1.0, 2)
    assert off.drafted_tokens == 2
    assert on.output_tok_s is not None and on.output_tok_s.lowest == pytest.approx(22 / 3)
    sampled = Plan([TASK], [Load(1)], ["off", "on"], 2, Settings(temperature=1.0))
    assert summarize(sampled, journal)[1].compared == 0, "without a seed texts differ anyway"
    journal.close()


def test_loads() -> None:
    assert parse_loads("1,8,2.5/s") == [Load(1), Load(8), Load(rate=2.5)]
    for wrong in ("0", "", "1,,2", "x", "2/m", "0/s", "1,1", "-3"):
        with pytest.raises(SuiteError, match="--loads"):
            parse_loads(wrong)
    starts = poisson_starts(10, 2000, 1)
    assert starts[0] == 0 and starts == sorted(starts) == poisson_starts(10, 2000, 1)
    assert starts[-1] == pytest.approx(200, rel=0.1)


def test_what_is_sent_depends_on_who_answers() -> None:
    question = Question([{"role": "user", "content": "x"}], None, 7, True, (), "off", 3, "salt")
    sampled = Settings(temperature=0.5, top_k=4, seed=10, extra_body={"priority": 1})
    endpoint = Endpoint(None, "m", "volley", 1)  # type: ignore[arg-type]
    fields = fields_of(endpoint, question, sampled)
    assert fields["extra_body"] == {
        "top_k": 4, "ignore_eos": True, "cache_salt": "salt", "priority": 1,
        "volley": {"tokens_per_step": True, "speculation": False},
    }
    assert (fields["seed"], fields["max_tokens"], fields["temperature"]) == (13, 7, 0.5)
    other = fields_of(Endpoint(None, "m", "someone", 1), question, Settings(max_tokens=9, force_max_tokens=True))  # type: ignore[arg-type]
    assert other["extra_body"] == {"ignore_eos": True} and other["max_tokens"] == 9 and "seed" not in other
    json.dumps(other)
