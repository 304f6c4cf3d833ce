"""Datasets as tasks: what is asked, and how an answer is judged. A reader for each published layout."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .answers import solution_number
from .errors import SuiteError
from .files import Row, files_of, kind_of, read_rows

Judge = Literal["number", "math", "choice", "text", "json", "code"]
Message = dict[str, Any]


@dataclass(frozen=True)
class CodeTest:
    """The program that judges an answer is `before`, the answer's code, and `after`: right if it ends without error."""

    before: str
    after: str
    entry_point: str  # the function that the answer must define


@dataclass(frozen=True)
class Sample:
    messages: list[Message]
    follow_ups: tuple[str, ...] = ()  # what the user says after each answer
    prompt: str = ""  # for /v1/completions; empty: the messages' texts
    judge: Judge | None = None  # None: there is no right answer
    expected: str = ""
    code: CodeTest | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False

    @property
    def turns(self) -> int:
        return 1 + len(self.follow_ups)


@dataclass(frozen=True)
class Task:
    name: str
    samples: list[Sample] = field(repr=False)


@dataclass(frozen=True)
class Shape:
    """Sizes of the random load."""

    input_words: int = 256
    output_tokens: int = 128
    seed: int = 1


@dataclass(frozen=True)
class Layout:
    files: tuple[str, ...]  # as they are published, below --data
    source: str  # where the file comes from
    read: Callable[[Path], Iterable[Sample]]


_BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
_LETTER = "Think step by step, and end with a line \"Answer: \" and the letter of the right choice."
_FUNCTION = "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```"


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise SuiteError(f"there is no text \"{name}\"")
    return value


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise SuiteError(f"there is no list of texts \"{name}\"")
    return value


def _each(convert: Callable[[Row], Sample | None]) -> Callable[[Path], Iterator[Sample]]:
    def read(path: Path) -> Iterator[Sample]:
        for file in files_of(path):
            for number, row in enumerate(read_rows(file), start=1):
                try:
                    sample = convert(row)
                except SuiteError as error:
                    raise SuiteError(f"{file}, row {number}: {error}.") from error
                if sample is not None:
                    yield sample

    return read


def _gsm8k(row: Row) -> Sample:
    expected = solution_number(_text(row, "answer"))
    if expected is None:
        raise SuiteError("\"answer\" has no number behind ####")
    return Sample(_user(f"{_text(row, 'question')}\n{_BOXED}"), judge="number", expected=expected)


def _math500(row: Row) -> Sample:
    return Sample(_user(f"{_text(row, 'problem')}\n{_BOXED}"), judge="math", expected=_text(row, "answer"))


def _humaneval(row: Row) -> Sample:
    prompt, name = _text(row, "prompt"), _text(row, "entry_point")
    # The prompt holds imports and helpers, and is a whole function by itself: the answer's replaces it.
    test = CodeTest(prompt, f"{_text(row, 'test')}\ncheck({name})\n", name)
    return Sample(_user(_FUNCTION.format(prompt.strip())), prompt=prompt, judge="code", code=test)


def _mbpp(row: Row) -> Sample:
    tests = _texts(row, "test_list")
    # The whole set says "text" and "test_setup_code", the sanitised one "prompt" and "test_imports".
    text = _text(row, "text" if "text" in row else "prompt")
    setup = "\n".join([*(row.get("test_imports") or []), row.get("test_setup_code") or ""])
    defined = re.findall(r"^def (\w+)", row.get("code") or "", re.MULTILINE)
    called = [name for name in defined if re.search(rf"\b{name}\(", tests[0])]
    ask = f"{text.strip()}\nAnswer with the code in a code block. It must pass these tests:\n\n```python\n"
    return Sample(
        _user(ask + "\n".join(tests) + "\n```"),
        judge="code",
        code=CodeTest(setup + "\n", "\n".join(tests) + "\n", called[0] if called else ""),
    )


def _mt_bench(row: Row) -> Sample:
    turns = _texts(row, "turns" if "turns" in row else "prompt")
    return Sample(_user(turns[0]), follow_ups=tuple(turns[1:]))


def _alpaca(row: Row) -> Sample:
    instruction, extra = _text(row, "instruction"), row.get("input") or ""
    return Sample(_user(f"{instruction}\n\n{extra}" if extra else instruction))


def _mmlu(path: Path) -> Iterator[Sample]:
    for file in files_of(path):
        # The archive of CSV files has no line of names; the other layout is "choices" and the number of the right one.
        columns = ("question", "A", "B", "C", "D", "answer") if kind_of(file) == ".csv" else ()
        for number, row in enumerate(read_rows(file, columns), start=1):
            try:
                yield _mmlu_sample(row)
            except SuiteError as error:
                raise SuiteError(f"{file}, row {number}: {error}.") from error


def _mmlu_sample(row: Row) -> Sample:
    choices = [str(row[letter]) for letter in "ABCD"] if "A" in row else _texts(row, "choices")
    answer = row.get("answer")
    letter = "ABCD"[answer] if isinstance(answer, int) and 0 <= answer < 4 else str(answer)
    if letter not in tuple("ABCD") or len(choices) != 4:
        raise SuiteError("it has no four choices with an \"answer\" from A to D or from 0 to 3")
    listed = "\n".join(f"{name}) {choice}" for name, choice in zip("ABCD", choices, strict=True))
    return Sample(_user(f"{_text(row, 'question')}\n\n{listed}\n\n{_LETTER}"), judge="choice", expected=letter)


def _sharegpt(row: Row) -> Sample | None:
    """The first question, with room for as long an answer as the one that was given: about four characters a token."""
    talk = row.get("conversations") or row.get("conversation") or []
    if len(talk) < 2 or talk[0].get("from") not in ("human", "user"):
        return None
    question, answer = _text(talk[0], "value"), str(talk[1].get("value") or "")
    if len(question) < 4 or len(answer) < 4:
        return None
    return Sample(_user(question), max_tokens=max(4, len(answer) // 4))


_JUDGES = ("number", "math", "choice", "text", "json", "code")


def _own(row: Row) -> Sample:
    """Volley's own lines: "messages" or "prompt", and optionally "expected", "judge", "test", "max_tokens"."""
    messages = row["messages"] if isinstance(row.get("messages"), list) else _user(_text(row, "prompt"))
    expected = row.get("expected", row.get("answer"))
    judge: Judge | None = row.get("judge")
    code = None
    if judge not in (None, *_JUDGES):
        raise SuiteError(f"\"judge\" is {judge!r}: it must be one of {', '.join(_JUDGES)}")
    if judge is None and expected is not None:
        judge = "number" if str(expected).strip("-").replace(".", "", 1).isdigit() else "text"
    if judge == "code":
        code = CodeTest(str(row.get("before", "")), _text(row, "test"), str(row.get("entry_point", "")))
    elif judge is not None and expected is None:
        raise SuiteError("\"judge\" needs \"expected\"")
    text = expected if isinstance(expected, str) else json.dumps(expected)
    prompt = row.get("prompt") if isinstance(row.get("prompt"), str) else ""
    return Sample(messages, prompt=prompt or "", judge=judge, expected=text, code=code,
                  max_tokens=row.get("max_tokens"))


_WORDS = ("time year people way day man thing woman life child world school state family student group country problem "
          "hand part place case week company system program question work number night point home water room mother "
          "area money story fact month lot right study book eye job word business issue side kind head house").split()


def random_samples(shape: Shape, count: int) -> list[Sample]:
    """Texts of words drawn from a seed, which answers of a fixed length follow."""
    draw = random.Random(shape.seed)
    return [
        Sample(_user(" ".join(draw.choices(_WORDS, k=shape.input_words))), max_tokens=shape.output_tokens,
               ignore_eos=True)
        for _ in range(count)
    ]


LAYOUTS: dict[str, Layout] = {
    "gsm8k": Layout(("gsm8k_test.jsonl", "gsm8k/test.jsonl", "gsm8k/main/test-00000-of-00001.parquet"),
                    "test.jsonl of the repository openai/grade-school-math", _each(_gsm8k)),
    "math500": Layout(("math500.jsonl", "MATH-500/test.jsonl"),
                      "test.jsonl of the dataset HuggingFaceH4/MATH-500", _each(_math500)),
    "humaneval": Layout(("HumanEval.jsonl.gz", "HumanEval.jsonl"),
                        "data/HumanEval.jsonl.gz of the repository openai/human-eval", _each(_humaneval)),
    "mbpp": Layout(("mbpp.jsonl", "sanitized-mbpp.json"),
                   "mbpp.jsonl or sanitized-mbpp.json of the folder mbpp in google-research", _each(_mbpp)),
    "mt-bench": Layout(("mt_bench.jsonl", "question.jsonl"),
                       "data/mt_bench/question.jsonl of the repository lm-sys/FastChat", _each(_mt_bench)),
    "alpaca": Layout(("alpaca_data.json",),
                     "alpaca_data.json of the repository tatsu-lab/stanford_alpaca", _each(_alpaca)),
    "mmlu": Layout(("mmlu/test", "mmlu.csv", "mmlu/all/test-00000-of-00001.parquet"),
                   "the folder test of MMLU's data.tar, or test of the dataset cais/mmlu", _mmlu),
    "sharegpt": Layout(("ShareGPT_V3_unfiltered_cleaned_split.json",),
                       "ShareGPT_V3_unfiltered_cleaned_split.json of anon8231489123/ShareGPT_Vicuna_unfiltered",
                       _each(_sharegpt)),
}
NAMES = (*LAYOUTS, "jsonl", "pocket", "random")


def find_file(name: str, given: Path | None, data: Path | None) -> Path:
    """The task's file: what was given, else one of the published names below `data`."""
    if given is not None:
        if not given.exists():
            raise SuiteError(f"There is no {given}.")
        return given
    if name in ("jsonl", "pocket"):
        raise SuiteError(f"The task {name} needs a file: {name}=FILE.jsonl.")
    layout = LAYOUTS[name]
    for file in layout.files if data else ():
        if data and (data / file).exists():
            return data / file
    place = f"{data} holds none of {', '.join(layout.files)}" if data else "no file is given"
    raise SuiteError(f"{name}: {place}. Get {layout.source}, and name it with --task {name}=FILE or put it below --data.")


def load(name: str, path: Path, count: int) -> list[Task]:
    """The first `count` samples of a file (0: all). Lines of the pocket tasks are told apart by their "task"."""
    if name == "pocket":
        groups: dict[str, list[Sample]] = {}
        rows = read_rows(path)
        for number, row in enumerate(rows, start=1):
            group = groups.setdefault(f"pocket-{row.get('task', 'word')}", [])
            try:
                group.append(_own(row))
            except SuiteError as error:
                raise SuiteError(f"{path}, row {number}: {error}.") from error
        return [Task(group, samples[: count or None]) for group, samples in groups.items()]
    read = _each(_own) if name == "jsonl" else LAYOUTS[name].read
    samples = []
    for sample in read(path):
        samples.append(sample)
        if len(samples) == count:
            break
    if not samples:
        raise SuiteError(f"{path} holds nothing that can be asked.")
    return [Task(name if name != "jsonl" else path.name.split(".")[0], samples)]
