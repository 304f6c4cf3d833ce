"""What scripts written for vLLM call beside generate(): parameters, tokenizer, metrics, progress, names, the program."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from volley import (
    LLM,
    Counter,
    EngineStats,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    Vector,
    VolleyError,
)
from volley._pictures import with_data_urls

GREEDY = SamplingParams(temperature=0, max_tokens=40)
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]
STORY = "Tell me a story about a fox and a bell."
# vLLM's SamplingParams, without what its own engine writes into it.
VLLM_FIELDS = """n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop
stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids flat_logprobs detokenize
skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind structured_outputs logit_bias
allowed_token_ids extra_args bad_words thinking_token_budget repetition_detection skip_reading_prefix_cache""".split()


def _answer(llm: LLM, **params: Any) -> Any:
    return llm.chat(QUESTION, SamplingParams(**{"temperature": 0, "max_tokens": 40, **params}))[0].outputs[0]


def _settled(llm: LLM) -> EngineStats:
    """A step's counters are there when it has ended, which may be after its answer."""
    deadline = time.monotonic() + 120
    while llm.stats().requests_running > 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    return llm.stats()


def test_every_field_of_vllms_is_known() -> None:
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(VLLM_FIELDS) <= known


@pytest.mark.parametrize(
    ("field", "value"),
    [("logits_processors", [lambda ids, logits: logits]), ("guided_decoding", {"regex": "a"}), ("extra_args", {"a": 1}),
     ("logprob_token_ids", [1]), ("flat_logprobs", True), ("best_of", 3), ("truncate_prompt_tokens", 0),
     ("logprobs", -1), ("prompt_logprobs", -1), ("seed", 2**64)],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", float("nan")), ("temperature", "hot"), ("temperature", None), ("top_p", 0),
     ("top_p", 1.5), ("top_k", -2), ("top_k", 0.5), ("min_p", -0.1), ("min_p", 2), ("repetition_penalty", 0),
     ("repetition_penalty", float("inf")), ("presence_penalty", -3), ("frequency_penalty", 2.1), ("n", 0), ("n", True),
     ("n", 1.0), ("max_tokens", 0), ("max_tokens", "many"), ("min_tokens", -1), ("min_tokens", 17), ("seed", 1.5),
     ("seed", -(2**63) - 1), ("logprobs", 21), ("prompt_logprobs", 21), ("stop", ""), ("stop", ["a", ""]), ("stop", 5),
     ("stop", [5]), ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", 3), ("bad_words", "word"),
     ("bad_words", [""]), ("allowed_token_ids", []), ("allowed_token_ids", [1.5]), ("logit_bias", {1: 101}),
     ("logit_bias", {"1": 1}), ("logit_bias", [1]), ("thinking_token_budget", -1), ("ignore_eos", "no"),
     ("detokenize", 1), ("speculation", None), ("output_kind", "delta"), ("repetition_detection", {}),
     ("truncate_prompt_tokens", -2)],
)
def test_a_value_that_cannot_be_is_refused_when_made(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        SamplingParams(**{field: value})


def test_every_field_is_checked_where_it_has_bounds() -> None:
    """One that is added without a check would be found out by the engine, requests later."""
    unchecked = {field.name for field in dataclasses.fields(SamplingParams)}
    for field in list(unchecked):
        wrong: dict[str, Any] = {field: object()}
        try:
            SamplingParams(**wrong)
        except (TypeError, ValueError) as error:
            assert field in str(error)
            unchecked.discard(field)
    assert not unchecked


def test_values_at_the_bounds_are_taken() -> None:
    whole = SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1, repetition_penalty=100, presence_penalty=-2,
                           frequency_penalty=2, seed=-(2**63), max_tokens=None, min_tokens=5, logprobs=20, stop=["a"],
                           stop_token_ids=(1, 2), bad_words=["a"], logit_bias={1: -100}, truncate_prompt_tokens=-1)
    assert dataclasses.replace(whole, seed=2**64 - 1).min_tokens == 5
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None, seed=-1) == SamplingParams(seed=-1)


@pytest.mark.parametrize(
    ("fields", "match"),
    [({}, "exactly one"), ({"regex": "a", "json_object": True}, "exactly one"), ({"json_object": False}, "exactly one"),
     ({"json": "{"}, "json is no JSON schema"), ({"json": 5}, "json is a int"), ({"choice": []}, "choice is empty"),
     ({"choice": "ab"}, "choice is 'ab'"), ({"choice": [""]}, "choice holds an empty"), ({"regex": 5}, "regex is 5")],
)
def test_structures_are_refused_when_made(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        StructuredOutputsParams(**fields)


@pytest.mark.parametrize(
    ("fields", "match"),
    [({"max_pattern_size": 3}, "min_count"), ({"max_pattern_size": -1}, "max_pattern_size"),
     ({"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}, "min_pattern_size")],
)
def test_repetition_rules_are_refused_when_made(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RepetitionDetectionParams(**fields)


def test_negative_seeds(llm: LLM) -> None:
    def hot(seed: int) -> SamplingParams:
        return SamplingParams(temperature=10, ignore_eos=True, seed=seed)

    drawn = llm.generate(["a"] * 4, hot(-1))
    assert len({tuple(output.outputs[0].token_ids) for output in drawn}) == 4
    one, same = llm.generate(["a"] * 2, [hot(-2), hot(2**64 - 2)])
    assert one.outputs[0].token_ids == same.outputs[0].token_ids


def test_structured_outputs_have_their_own_class() -> None:
    with pytest.raises(TypeError, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_structured_fields_that_are_not_supported() -> None:
    for name, value in (("structural_tag", "x"), ("whitespace_pattern", " "), ("disable_additional_properties", True)):
        with pytest.raises(ValueError, match=name):
            StructuredOutputsParams(regex="a", **{name: value})  # type: ignore[arg-type]


def test_which_tokens_may_be_chosen(llm: LLM) -> None:
    plain = _answer(llm)
    assert "42" in plain.text
    assert "42" not in _answer(llm, bad_words=["42"]).text
    digits = [llm.encode(str(digit), add_special_tokens=False)[-1] for digit in range(10)]
    only = _answer(llm, allowed_token_ids=digits, max_tokens=6)
    assert set(only.token_ids) <= set(digits)
    with pytest.raises(ValueError, match="allowed_token_ids is empty"):
        _answer(llm, allowed_token_ids=[])
    with pytest.raises(ValueError, match="bad_words holds"):
        _answer(llm, bad_words=[""])
    with pytest.raises(ValueError, match="thinking_token_budget"):
        _answer(llm, thinking_token_budget=5)


def test_what_the_text_holds(llm: LLM) -> None:
    plain = _answer(llm)
    assert plain.token_ids[-1] in llm.info.eos_token_ids
    assert _answer(llm, stop="####", include_stop_str_in_output=True).text.endswith("####")
    assert _answer(llm, include_stop_str_in_output=True).text == plain.text, "the end token is a special one"
    special = _answer(llm, include_stop_str_in_output=True, skip_special_tokens=False).text
    assert special == plain.text + llm.decode(plain.token_ids[-1:], skip_special_tokens=False) != plain.text
    silent = _answer(llm, detokenize=False)
    assert silent.text == "" and silent.token_ids == plain.token_ids
    with pytest.raises(ValueError, match="detokenize"):
        SamplingParams(stop="a", detokenize=False)


def test_a_repetition_ends_the_answer(llm: LLM) -> None:
    one = llm.encode("a", add_special_tokens=False)[:1]
    rule = RepetitionDetectionParams(max_pattern_size=3, min_pattern_size=1, min_count=4)
    output = _answer(llm, allowed_token_ids=one, repetition_detection=rule, max_tokens=30)
    assert (output.finish_reason, output.stop_reason, len(output.token_ids)) == ("repetition", "repetition_detected", 4)
    with pytest.raises(ValueError, match="min_count"):
        _answer(llm, repetition_detection=RepetitionDetectionParams(max_pattern_size=3))


def test_prompts_are_cut_at_the_front(llm: LLM) -> None:
    ids = llm.encode("one two three four five six seven eight")
    cut = llm.generate(ids, SamplingParams(temperature=0, max_tokens=4, truncate_prompt_tokens=3))[0]
    assert cut.prompt_token_ids == ids[-3:]
    long = [ids[-1]] * (llm.info.max_model_len + 50)
    with pytest.raises(VolleyError):
        llm.generate([long], SamplingParams(max_tokens=4))
    fits = llm.generate([long], SamplingParams(temperature=0, max_tokens=4, truncate_prompt_tokens=-1))[0]
    assert len(fits.prompt_token_ids) == llm.info.max_model_len - 4


def test_the_prefix_cache_can_be_left_alone(llm: LLM) -> None:
    prompt = "The gate beside the river is open. " * 6
    params = dataclasses.replace(GREEDY, skip_reading_prefix_cache=True)
    first = llm.generate(prompt, GREEDY)[0]
    again = llm.generate(prompt, params)[0]
    assert again.num_cached_tokens == 0 and llm.generate(prompt, GREEDY)[0].num_cached_tokens > 0
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    before = _settled(llm).cached_tokens
    llm.generate(prompt, dataclasses.replace(params, n=10, max_tokens=4))  # more than there are slots
    assert _settled(llm).cached_tokens > before, "the answers to one prompt share it"


def test_free_white_space_in_json(llm: LLM) -> None:
    for structure in (StructuredOutputsParams(json_object=True, disable_any_whitespace=False),
                      StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=False),
                      StructuredOutputsParams(json='{"type": "object"}', disable_any_whitespace=True)):
        assert _answer(llm, structured_outputs=structure).text.lstrip().startswith("{")
    anything = StructuredOutputsParams(json={}, disable_any_whitespace=False)
    assert json.loads(anything._grammar().text) == {"x-guidance": {"whitespace_flexible": True}}
    with pytest.raises(ValueError, match="exactly one"):
        _answer(llm, structured_outputs=StructuredOutputsParams(json={}, json_object=True, disable_any_whitespace=False))


def test_pictures_become_data_urls(llm: LLM, tmp_path: Path) -> None:
    class Picture:  # as PIL's
        mode = "RGB"

        def getexif(self) -> bytes:
            return b"exif"

        def save(self, file: io.BytesIO, kind: str, exif: bytes) -> None:
            file.write(kind.encode() + exif)

    path = tmp_path / "a.png"
    path.write_bytes(b"file")
    given = [b"bytes", path, str(path), Picture(), "data:image/png;base64,AAAA"]
    text = {"type": "text", "text": "What?"}
    messages = [{"role": "user", "content": [*({"type": "image", "image": one} for one in given), text]}]
    *urls, last = with_data_urls(messages)[0]["content"]
    files = [base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in urls]
    assert files == [b"bytes", b"file", b"file", b"PNGexif", base64.b64decode("AAAA")] and last == text
    with pytest.raises(ValueError, match="int: it must be a PIL image"):
        with_data_urls([{"role": "user", "content": [{"type": "image", "image": 5}]}])
    with pytest.raises(ValueError, match="Only text is supported"):  # the pocket model sees nothing
        llm.chat(messages, GREEDY)


def test_the_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(STORY)
    assert ids == llm.encode(STORY) and tokenizer.decode(ids, skip_special_tokens=True) == STORY
    assert tokenizer(STORY)["input_ids"] == ids and tokenizer([STORY, "a"])["input_ids"][0] == ids
    assert tokenizer.batch_decode([ids], skip_special_tokens=True) == [STORY]
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert text == llm.render_chat(QUESTION)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert isinstance(prompt, list)
    assert tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True, truncation=False) == text
    for name in ("chat_template", "return_dict", "return_tensors", "truncation"):
        with pytest.raises(ValueError, match=name):
            tokenizer.apply_chat_template(QUESTION, **{name: "x"})  # type: ignore[arg-type]
    assert llm.generate(prompt, GREEDY)[0].outputs[0].token_ids == llm.chat(QUESTION, GREEDY)[0].outputs[0].token_ids
    assert len(tokenizer) == tokenizer.vocab_size == llm.info.vocab_size
    assert tokenizer.eos_token_id in llm.info.eos_token_ids


def test_metrics_count(llm: LLM) -> None:
    def value(name: str) -> float:
        (metric,) = [m for m in llm.get_metrics() if m.name == name]
        return metric.values[0] if isinstance(metric, Vector) else metric.value

    # A step's counters are there when it has ended, which may be after its answer.
    time.sleep(0.3)
    before = value("volley:generation_tokens")
    tokens = len(llm.generate(STORY, GREEDY)[0].outputs[0].token_ids)
    deadline = time.monotonic() + 120
    while value("volley:generation_tokens") < before + tokens and time.monotonic() < deadline:
        time.sleep(0.005)
    assert value("volley:generation_tokens") >= before + tokens
    assert value("volley:spec_decode_num_accepted_tokens") <= value("volley:spec_decode_num_draft_tokens")
    assert value("volley:spec_decode_num_accepted_tokens_per_pos") <= value("volley:spec_decode_num_drafts")
    assert Counter("a", 1).labels == {}
    assert _settled(llm).pages_used > 0
    assert value("volley:kv_cache_usage_perc") == 0, "what is cached is free for requests"


def test_names_can_be_read(llm: LLM) -> None:
    assert repr(SamplingParams(temperature=0, stop=["a"])) == "SamplingParams(temperature=0, stop=['a'])"
    assert repr(SamplingParams()) == "SamplingParams()"
    assert re.match(r"LLM\(model='pocket', draft='pocket-dflash', device='cpu', dtype='float32', ", repr(llm))
    assert re.match(r"EngineInfo\(architecture='\w+', .*, max_num_seqs=8, .*default_sampling=Sampling\(", repr(llm.info))
    assert re.match(r"EngineStats\(requests_waiting=\d+, .*verify=VerifyStats\(steps=", repr(llm.stats()))
    assert repr(llm.get_tokenizer()).startswith("Tokenizer(vocab_size=")
    assert " object at 0x" not in repr(llm.generate(STORY, GREEDY)[0])
    params = SamplingParams(n=2, output_kind=RequestOutputKind.DELTA)
    assert params.clone() == params


def test_progress(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    class Bar:
        def __init__(self, **arguments: Any) -> None:
            seen.append(arguments["total"])

        def update(self, count: int) -> None:
            seen.append(count)

        def close(self) -> None:
            seen.append("closed")

    llm.generate(["a", "b", "c"], SamplingParams(n=2, max_tokens=2), use_tqdm=Bar)
    assert seen == [6, 1, 1, 1, 1, 1, 1, "closed"]
    llm.generate("a", SamplingParams(max_tokens=2))
    llm.chat(QUESTION, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == "", "no terminal, no bar"


def test_priorities_are_one_for_each(llm: LLM) -> None:
    assert len(llm.generate(["a", "b"], GREEDY, priority=[1, 0])) == 2
    with pytest.raises(ValueError, match="1 priorities for 2 prompts"):
        llm.generate(["a", "b"], GREEDY, priority=[1])


def test_the_wheel_has_the_program() -> None:
    program = Path(sys.executable).parent / "volley"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("volley ")
    wrong = subprocess.run([program, "serv"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "did you mean serve" in wrong.stderr
    with subprocess.Popen([program, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://[^\s(]+", server.stdout.readline())
            assert found
            with urllib.request.urlopen(found.group() + "/v1/models", timeout=30) as answer:
                assert b'"pocket"' in answer.read()
            # The process is the program itself, not a parent of it.
            assert Path(f"/proc/{server.pid}/exe").resolve().parts[-3:] == ("volley", "bin", "volley")
        finally:
            server.terminate()
        assert server.wait(30) == 0
