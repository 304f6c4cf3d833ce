"""Errors, threads, Ctrl-C, and the end."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import volley
from volley import LLM, InvalidArgumentError, NotFoundError, RequestOutput, SamplingParams, VolleyError

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_errors_carry_the_engines_sentence(llm: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match="logit_bias") as caught:
        llm.generate("x", SamplingParams(logit_bias={99999: 1.0}))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, VolleyError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.code) == (InvalidArgumentError, str(caught.value), "INVALID_ARGUMENT")
    with pytest.raises(InvalidArgumentError, match="prompt 1: "):
        llm.generate(["x", "y"], [SamplingParams(), SamplingParams(logit_bias={99999: 1.0})])
    with pytest.raises(VolleyError):
        llm.generate([[10**7]], SamplingParams())
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.generate("x", [LONG, LONG])
    with pytest.raises(ValueError, match="max_tokens"):
        SamplingParams(max_tokens=0)
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].finished, "errors leave the engine as it was"


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(NotFoundError) as caught:
        LLM("/nowhere/model")
    assert "/nowhere/model" in str(caught.value)
    with pytest.raises(ValueError, match="draft"):
        LLM("/nowhere/model", speculation=True)
    with pytest.raises(ValueError, match="dtype"):
        LLM(dtype="float8")
    wrong: list[str | int] = ["most", -1, 1024, True]
    for verify in wrong:
        with pytest.raises(ValueError, match="verify"):
            LLM(verify=verify)


def test_without_speculation() -> None:
    with LLM(speculation=False, max_num_seqs=2) as llm:
        assert llm.info.block_size == 1 and llm.info.drafters == 0
        output = llm.generate("Hello!", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0]
        assert set(output.tokens_per_step) <= {1}
        # The counters are those of the last step that has ended: an answer may be here before its step's.
        assert _eventually(lambda: llm.stats().requests_finished == 1)
        assert llm.stats().drafted_tokens == 0
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("Hello!")


def test_the_verify_policy_changes_no_token(tmp_path: Path) -> None:
    def answer(verify: str | int) -> list[int]:
        with LLM(verify=verify, max_num_seqs=2, cost_cache=tmp_path) as llm:
            output = llm.generate("Hello!", SamplingParams(temperature=0, max_tokens=32))[0].outputs[0]
            assert _eventually(lambda: llm.stats().requests_finished == 1)
            stats = llm.stats().verify
            assert stats.steps > 0
            if verify == 3:
                assert stats.draft_lengths[3] > 0 and not any(stats.draft_lengths[4:])
            return output.token_ids

    assert answer("auto") == answer("full") == answer(3) == answer(0)


def test_python_runs_while_the_engine_works(llm: LLM) -> None:
    results = []
    worker = threading.Thread(target=lambda: results.append(llm.generate(["a", "b", "c", "d"], LONG)))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
        time.sleep(0.001)
    worker.join()
    assert len(results[0]) == 4
    assert turns > 20


def test_calls_of_several_threads_do_not_mix(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    prompts = [f"Count from {i} in steps of 2" for i in range(8)]
    expected = [output.outputs[0].text for output in llm.generate(prompts, params)]
    texts: dict[int, str] = {}

    def ask(i: int) -> None:
        texts[i] = llm.generate(prompts[i], params)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[i] for i in range(8)] == expected


def test_ctrl_c_ends_a_call_and_its_requests(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, threading, time\n"
        "from volley import LLM, SamplingParams\n"
        # Where the tests run in the background of a shell, SIGINT is ignored, and so it would be here.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "llm = LLM()\n"
        "def tell():\n"
        "    while not llm.stats().requests_running:\n"
        "        time.sleep(0.005)\n"
        "    print('ready', flush=True)\n"
        "threading.Thread(target=tell).start()\n"
        "try:\n"
        "    llm.generate(['x'] * 2000, SamplingParams(max_tokens=900, ignore_eos=True))\n"
        "except KeyboardInterrupt:\n"
        "    open_requests = lambda: llm.stats().requests_running + llm.stats().requests_waiting\n"
        "    deadline = time.monotonic() + 120\n"
        "    while open_requests() and time.monotonic() < deadline:\n"
        "        time.sleep(0.005)\n"
        "    print('interrupted', open_requests(), llm.stats().requests_cancelled > 0, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted 0 True\n"
        assert process.wait(30) == 0


def test_closing_does_not_disturb_what_runs() -> None:
    threads = len(os.listdir("/proc/self/task"))
    llm = LLM(dtype="float32", max_num_seqs=2)
    tokenizer = llm.get_tokenizer()
    outputs: list[RequestOutput] = []
    params = dataclasses.replace(LONG, logprobs=1)
    worker = threading.Thread(target=lambda: outputs.extend(llm.generate("x", params)))
    worker.start()
    assert _eventually(lambda: llm.stats().requests_running == 1)
    llm.close()
    worker.join()
    assert len(outputs) == 1 and len(outputs[0].outputs[0].logprobs or []) == 200
    with pytest.raises(RuntimeError, match="closed"):
        tokenizer.encode("x")
    assert tokenizer.vocab_size > 0
    assert _eventually(lambda: len(os.listdir("/proc/self/task")) <= threads), "a tokenizer does not keep the engine"


def _run_script(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    file.write_text(script)
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120)


def test_a_forked_process_is_told_to_load_its_own(tmp_path: Path) -> None:
    done = _run_script(tmp_path, """
import os, signal, sys
from volley import LLM, SamplingParams

llm = LLM(max_num_seqs=2)
stream = llm.stream("x", SamplingParams(max_tokens=900, ignore_eos=True))
next(stream)
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends what hangs
    try:
        llm.generate("x")
    except RuntimeError as error:
        sys.exit(0 if "in each process" in str(error) else 3)
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(stream).finished, llm.generate("x")[0].finished)
""")
    assert done.stdout == "0 False True\n", done.stderr


def test_a_daemon_thread_may_generate_at_the_end(tmp_path: Path) -> None:
    done = _run_script(tmp_path, """
import threading, time
from volley import LLM, SamplingParams

llm = LLM(max_num_seqs=2)
params = SamplingParams(max_tokens=900, ignore_eos=True)
threading.Thread(target=lambda: [llm.generate("x", params) for _ in range(1000)], daemon=True).start()
while llm.stats().requests_running == 0:
    time.sleep(0.001)
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_engines() -> None:
    cmake = (Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert f"project(volley VERSION {volley.__version__} " in cmake
