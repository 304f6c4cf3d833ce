"""The whole program: against the pocket pair, killed and resumed, and against an endpoint that is not Volley."""

from __future__ import annotations

import collections
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, POCKET
from volley_suite.command import main


def _report(output: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((output / "report.json").read_text())
    return report


def _keys(output: Path, kind: str) -> collections.Counter[tuple[Any, ...]]:
    counts: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for line in (output / "run.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == kind:
            counts[(*entry["cell"].values(), entry["sample"], entry.get("turn"))] += 1
    return counts


def test_the_pocket_pair_on_every_kind_of_task(server: str, tmp_path: Path) -> None:
    files = {"gsm8k": "gsm8k_test.jsonl", "math500": "math500.jsonl", "humaneval": "HumanEval.jsonl.gz",
             "mbpp": "mbpp.jsonl", "mt-bench": "question.jsonl", "alpaca": "alpaca_data.json", "mmlu": "mmlu_test.csv",
             "sharegpt": "sharegpt.json"}
    named = [argument for name, file in files.items() for argument in ("--task", f"{name}={DATA / file}")]
    arguments = [*named, "--task", f"pocket={POCKET}", "--task", "random", "--num-samples", "4", "--loads", "1,4",
                 "--input-words", "20", "--output-tokens", "12", "--max-tokens", "96",
                 "--url", server, "--output", str(tmp_path)]
    assert main(arguments) == 0
    report = _report(tmp_path)
    rows = {(row["task"], row["load"], row["mode"]): row for row in report["rows"]}
    assert len(rows) == 16 * 2 * 2 and not report["notes"]
    for (task, _, mode), row in rows.items():
        assert row["errors"] == 0 and row["completion_tokens"] > 0 and row["output_tok_s"]["median"] > 0
        if mode == "off":
            assert row["tokens_per_step"] == 1 and row["drafted_tokens"] == 0, task
        else:
            assert row["compared"] == row["same"] == row["requests"], f"{task}: texts depend on speculation"
            assert row["tokens_per_step_exact"] and row["speedup"]["lowest"] > 0
        assert row["right"] == rows[task, "1", "off"]["right"], "accuracy depends on nothing but the text"
        if task.startswith("pocket-") and task not in ("pocket-story", "pocket-about"):
            assert (row["judged"], row["right"]) == (4, 4), task
        assert (row["accuracy"] is None) == (task in ("mt-bench", "alpaca", "sharegpt", "random", "pocket-story",
                                                      "pocket-about")), task
    assert rows["pocket-word", "1", "on"]["tokens_per_step"] > 4
    assert rows["mt-bench", "1", "on"]["requests"] == 2 * 2, "every turn is a request"
    assert rows["random", "4", "on"]["completion_tokens"] == 96 * 4, "--max-tokens is of every answer"
    for name in ("speedup.svg", "load.svg"):
        assert (tmp_path / name).read_text().startswith("<?xml")
    table = (tmp_path / "report.md").read_text()
    assert "| pocket-json | 4 | on | 4 | 100.0 % |" in table and "4 of 4" in table
    before = (tmp_path / "run.jsonl").read_bytes()
    assert main(arguments) == 0
    assert (tmp_path / "run.jsonl").read_bytes() == before, "nothing is left to do"


def test_a_killed_run_goes_on_and_loses_and_doubles_nothing(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "volley_suite", "--url", server, "--task", f"pocket={POCKET}", "--num-samples", "4",
               "--repeats", "2", "--loads", "3", "--output", str(tmp_path)]
    run_file = tmp_path / "run.jsonl"
    kills = 0
    for lines in (5, 30, 61):  # so many more lines each time
        had = run_file.stat().st_size if run_file.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if run_file.exists() and run_file.read_bytes()[had:].count(b"\n") >= lines:
                break
            time.sleep(0.002)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills >= 2, "it was never killed in the middle"
    kept = _keys(tmp_path, "answer")
    assert max(kept.values()) == 1 and len(kept) < 7 * 8 * 2
    # A kill within a write.
    run_file.write_bytes(run_file.read_bytes() + b'{"kind":"answer","cell":{"task"')
    assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    answers = _keys(tmp_path, "answer")
    assert len(answers) == 7 * 8 * 2 and set(answers.values()) == {1}
    assert set(kept) <= set(answers)
    verdicts = _keys(tmp_path, "verdict")
    assert len(verdicts) == 5 * 8 * 2 and set(verdicts.values()) == {1}
    report = _report(tmp_path)
    assert sum(row["requests"] for row in report["rows"]) == 7 * 8 * 2
    assert any("starts" in note for note in report["notes"]), "a reader is told that a measurement was interrupted"


def test_an_interrupt_keeps_what_there_is(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "volley_suite", "--url", server, "--task", "random", "--num-samples", "64", "--loads", "2",
               "--output", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run.jsonl").exists() or (tmp_path / "run.jsonl").read_bytes().count(b"\n") < 4:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on from here" in said and "Traceback" not in said
    assert set(_keys(tmp_path, "answer").values()) == {1}


class _Scripted(http.server.BaseHTTPRequestHandler):
    """An endpoint that knows nothing of Volley: fails every fifth request, in one of several ways."""

    protocol_version = "HTTP/1.0"
    asked: list[dict[str, Any]] = []
    healthy = False
    dribbles = False  # answers grow by a piece now and then, for longer than anybody waits

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, json.dumps({"object": "list", "data": [
            {"id": "other", "object": "model", "created": 0, "owned_by": "someone"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        number = len(self.asked)
        if self.dribbles:
            return self._dribble()
        events: list[Any] = [{"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}}]},
                             {"choices": [{"index": 0, "delta": {"content": "#### 18"}, "finish_reason": "stop"}]},
                             {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14,
                                                       "completion_tokens_details": {"accepted_prediction_tokens": 6}}}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        if not self.healthy and number % 5 == 0:
            kind = number // 5 % 4
            if kind == 0:
                return self._send(503, json.dumps({"error": {"message": "too busy"}}))
            lines = [lines[:3], lines[:2] + lines[3:], lines[:1] + ['data: {"error": {"message": "it broke"}}\n\n']][kind - 1]
        self._send(200, "".join(lines), "text/event-stream")

    def _dribble(self) -> None:
        self._send(200, "", "text/event-stream")
        for _ in range(300):
            try:
                self.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')
            except OSError:
                return  # the client has left
            time.sleep(0.1)

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def scripted() -> Iterator[str]:
    _Scripted.asked = []
    _Scripted.healthy = _Scripted.dribbles = False
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_another_endpoint_and_its_errors(scripted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"question": f"q{i}", "answer": f"#### {18 + i % 2}"} for i in range(40)]
    data = tmp_path / "gsm8k_test.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--url", scripted + "/v1/", "--task", "gsm8k", "--data", str(tmp_path), "--loads", "2", "--warmup", "0",
                 "--output", str(tmp_path / "out")]
    assert main(arguments) == 1
    (row,) = _report(tmp_path / "out")["rows"]
    assert (row["mode"], row["requests"], row["errors"], row["judged"]) == ("served", 40, 8, 32)
    told = "\n".join(json.loads(line)["error"] for line in (tmp_path / "out/run.jsonl").read_text().splitlines()[1:]
                     if '"answer"' in line)
    for error in ("too busy", "[DONE]", "no usage", "it broke"):
        assert error in told
    assert row["tokens_per_step"] == 4 and not row["tokens_per_step_exact"] and row["speedup"] is None
    assert "volley" not in _Scripted.asked[0] and "cache_salt" not in _Scripted.asked[0]
    _Scripted.healthy = True
    assert main(arguments) == 0, "what failed is asked again"
    (row,) = _report(tmp_path / "out")["rows"]
    assert (row["errors"], row["judged"], row["right"]) == (0, 40, 20) and len(_Scripted.asked) == 48
    capsys.readouterr()
    assert main([*arguments, "--speculation", "off"]) == 2
    assert "--baseline-url" in capsys.readouterr().err
    # Two endpoints: the one without speculation is asked for "off".
    assert main([*arguments[:-1], str(tmp_path / "two"), "--baseline-url", scripted, "--num-samples", "3"]) == 0
    assert [row["mode"] for row in _report(tmp_path / "two")["rows"]] == ["off", "on"]


def test_the_time_limit_is_of_a_whole_answer(scripted: str, tmp_path: Path) -> None:
    _Scripted.dribbles = True
    arguments = ["--url", scripted, "--task", "random", "--num-samples", "1", "--loads", "1", "--warmup", "0",
                 "--timeout", "0.5", "--output", str(tmp_path)]
    assert main(arguments) == 1
    assert "no whole answer within 0.5 s (--timeout)" in (tmp_path / "run.jsonl").read_text()


def test_a_folder_is_of_the_servers_that_it_was_begun_with(
    scripted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _Scripted.healthy = True
    output = ["--task", "random", "--num-samples", "1", "--output", str(tmp_path)]
    assert main(["--url", scripted, "--baseline-url", scripted, *output]) == 0
    asked = len(_Scripted.asked)
    elsewhere = scripted.replace("127.0.0.1", "localhost")
    for url, baseline in ((elsewhere, scripted), (scripted, elsewhere)):
        capsys.readouterr()
        assert main(["--url", url, "--baseline-url", baseline, *output]) == 2
        said = capsys.readouterr().err
        assert "is of another run" in said and elsewhere in said and said.endswith("Give another --output.\n")
    assert main(["--url", scripted, "--baseline-url", scripted, *output]) == 0
    assert len(_Scripted.asked) == asked, "nothing was left to do"


def test_completions_continue_prompts(server: str, tmp_path: Path) -> None:
    arguments = ["--url", server, "--task", f"humaneval={DATA / 'HumanEval.jsonl.gz'}", "--endpoint", "completions",
                 "--loads", "5/s", "--max-tokens", "24", "--output", str(tmp_path), "--temperature", "0.8", "--seed", "5"]
    assert main(arguments) == 0
    off, on = _report(tmp_path)["rows"]
    assert off["judged"] == on["judged"] == on["same"] == on["compared"] == 3
    assert on["load"] == "5/s" and not (tmp_path / "load.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "gsm9k"], "There is no task 'gsm9k'"),
        (["--task", "random=x"], "has no file"),
        (["--task", "gsm8k"], "openai/grade-school-math"),
        (["--task", "random", "--task", "random"], "named twice"),
        (["--task", "random", "--loads", "x"], "neither a number"),
        (["--task", "random", "--repeats", "0"], "--repeats is 0"),
        (["--task", "random", "--extra-body", "[]"], "must be a JSON object"),
        (["--task", "random", "--url", "localhost:1"], "give http://HOST:PORT"),
        (["--task", "random", "--url", "http://127.0.0.1:9"], "does not answer"),
        (["--task", "random", "--model", "gpt"], "does not list the model gpt"),
        (["--task", "random", "--api-key-file", "/nowhere"], "Cannot read the key file"),
    ],
)
def test_mistakes_get_a_sentence(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["--url", server, "--output", str(tmp_path / "out"), *arguments]) == 2
    said = capsys.readouterr().err
    assert re.match(r"volley-suite: .*\.\n\Z", said, re.DOTALL) and message in said
    assert not (tmp_path / "out/report.json").exists()


def test_the_command_of_the_program(tmp_path: Path) -> None:
    """`volley bench serving` starts volley-suite, with everything behind it, where there is one on the PATH."""
    from conftest import PROGRAM

    nowhere = subprocess.run([PROGRAM, "bench", "serving", "--url", "x"], env={"PATH": str(tmp_path)}, capture_output=True,
                             text=True)
    assert nowhere.returncode == 2 and "pip install ./suite" in nowhere.stderr and nowhere.stderr.count("\n") == 1
    stand_in = tmp_path / "volley-suite"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    stand_in.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    given = ["--url", "http://x", "--help", "a b", "", "-3", "--", "--json"]
    found = subprocess.run([PROGRAM, "bench", "serving", *given], env=path, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (7, "".join(argument + "|" for argument in given))
