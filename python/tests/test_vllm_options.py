"""LLM's options under vLLM's names: a script that is moved here runs, or says which of them cannot be honoured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import volley
from volley import LLM, SamplingParams

MODELS = Path(volley.__file__).parent / "share" / "volley" / "models"
SHORT = SamplingParams(temperature=0, max_tokens=4)


def test_a_script_for_vllm_runs() -> None:
    with LLM(
        model=str(MODELS / "pocket"),
        tokenizer=str(MODELS / "pocket"),
        tokenizer_mode="auto",
        trust_remote_code=True,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        dtype="float",
        revision=None,
        seed=0,
        gpu_memory_utilization=0.5,
        swap_space=4,
        cpu_offload_gb=0,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=2,
        disable_log_stats=True,
        enable_chunked_prefill=True,
        load_format="auto",
        distributed_executor_backend="mp",
        disable_custom_all_reduce=True,
    ) as llm:
        assert llm.info.dtype == "float32" and llm.info.max_model_len == 256
        assert llm.generate("x", SHORT, use_tqdm=False)[0].finished


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokenizer_mode", "mistral"), ("revision", "v2"), ("tokenizer_revision", "v2"),
     ("pipeline_parallel_size", 2), ("cpu_offload_gb", 4), ("enable_lora", True), ("load_format", "gguf"),
     ("enable_chunked_prefill", False), ("skip_tokenizer_init", True), ("hf_overrides", {"a": 1}), ("task", "embed"),
     ("runner", "pooling"), ("limit_mm_per_prompt", {"image": 1}), ("compilation_config", 3),
     ("distributed_executor_backend", "ray"), ("enforce_eager", "yes"), ("quantization", "awq"), ("dtype", "half"),
     ("kv_transfer_config", {"a": 1}), ("generation_config", "vllm"), ("seed", -1), ("enable_lora", 0)],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        LLM(**{name: value})


def test_an_unknown_name_says_which_was_meant() -> None:
    with pytest.raises(TypeError, match="no option max_modle_len .did you mean max_model_len"):
        LLM(max_modle_len=5)
    with pytest.raises(TypeError, match="no option frobnicate: help"):
        LLM(frobnicate=True)
    with pytest.raises(ValueError, match="memory_fraction is given twice"):
        LLM(memory_fraction=0.5, gpu_memory_utilization=0.5)
    with pytest.raises(ValueError, match="draft is given twice"):
        LLM(draft="none", speculative_config={"method": "dflash", "model": "x"})


def test_the_drafter_as_vllm_names_it() -> None:
    config = {"method": "dflash", "model": str(MODELS / "pocket-dflash"), "num_speculative_tokens": 3}
    with LLM(str(MODELS / "pocket"), speculative_config=config, max_num_seqs=2) as llm:
        assert llm.info.block_size > 1
        steps = llm.chat([{"role": "user", "content": "What is 12 + 30?"}], SHORT, use_tqdm=False)[0].outputs[0]
        assert max(steps.tokens_per_step) <= 4
    for wrong in ({"method": "ngram"}, {"method": "dflash"}, "dflash", {**config, "draft_tensor_parallel_size": 1}):
        with pytest.raises(ValueError, match="speculative_config"):
            LLM(speculative_config=wrong)


def test_a_seed_makes_drawn_answers_the_same_again() -> None:
    hot = SamplingParams(temperature=5, max_tokens=12, ignore_eos=True)

    def answers(seed: int | None) -> list[tuple[int, ...]]:
        with LLM(max_num_seqs=4, seed=seed) as llm:
            outputs = llm.generate(["a", "a", "b"], hot, use_tqdm=False) + llm.generate("a", hot, use_tqdm=False)
        return [tuple(output.outputs[0].token_ids) for output in outputs]

    first = answers(7)
    assert answers(7) == first
    assert len(set(first)) == 4, "each request draws its own"
    assert answers(8) != first and answers(None) != answers(None)


def test_names_are_looked_up_in_download_dir(tmp_path: Path) -> None:
    folder = tmp_path / "models--Qwen--Qwen3-4B"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc\n")
    (folder / "snapshots").mkdir()
    os.symlink(MODELS / "pocket", folder / "snapshots" / "abc")
    with LLM("Qwen/Qwen3-4B", download_dir=str(tmp_path), max_num_seqs=2) as llm:
        assert "model='Qwen/Qwen3-4B'" in repr(llm)
