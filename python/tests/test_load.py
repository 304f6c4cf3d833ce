"""Where models are found, and the engine's options."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path

import pytest
import volley
from volley import LLM, InvalidArgumentError, NotFoundError, SamplingParams, StructuredOutputsParams, _engine

MODELS = Path(volley.__file__).parent / "share" / "volley" / "models"
SHORT = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the pocket pair under a pair's names."""
    for name, pocket in (("Qwen/Qwen3-4B", "pocket"), ("z-lab/Qwen3-4B-DFlash-b16", "pocket-dflash")):
        folder = tmp_path / ("models--" + name.replace("/", "--"))
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("abc\n")
        (folder / "snapshots").mkdir()
        os.symlink(MODELS / pocket, folder / "snapshots" / "abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_names_are_looked_up_in_the_cache(hub: Path) -> None:
    with LLM("Qwen/Qwen3-4B", draft="auto", max_num_seqs=2) as llm:
        assert llm.info.drafters == 1 and llm.info.block_size > 1 and "draft='z-lab/Qwen3-4B-DFlash-b16'" in repr(llm)
        assert llm.generate("x", SHORT)[0].finished
    with LLM(hub / "models--Qwen--Qwen3-4B" / "snapshots" / "abc", "auto", max_num_seqs=2) as llm:
        assert "model='Qwen/Qwen3-4B'" in repr(llm)
    with pytest.raises(NotFoundError, match="hf download Qwen/Qwen3-8B,"):
        LLM("Qwen/Qwen3-8B")
    with pytest.raises(NotFoundError, match="hf download z-lab/Other"):
        LLM("Qwen/Qwen3-4B", draft="z-lab/Other")
    with pytest.raises(NotFoundError, match="knows no drafter"):
        LLM(MODELS / "pocket", draft="auto")


def test_draft_auto_and_none_with_the_pocket_pair() -> None:
    with LLM(draft="auto", max_num_seqs=2) as llm:
        assert llm.info.block_size > 1
    with LLM(draft="none", max_num_seqs=2) as llm:
        assert llm.info.block_size == 1


def test_none_is_the_engines_choice() -> None:
    with LLM(quantization=None, max_model_len=None, max_num_seqs=None, memory_fraction=None, dtype=None) as llm:
        assert llm.info.max_num_seqs == 32
    with pytest.raises(TypeError, match="max_num_seqs is 'many'"):
        LLM(max_num_seqs="many")  # type: ignore[arg-type]


def test_options_that_errors_name() -> None:
    with LLM(grammar_memory_bytes=1, grammar_compile_timeout_ms=9000, grammar_mask_timeout_ms=900, mmap=False,
             step_timeout_s=900, attention_backend="auto", state_snapshot_tokens=0,
             max_picture_pixels=4096, picture_cache_bytes=0, language_model_only=False, max_num_seqs=2) as llm:
        structure = StructuredOutputsParams(regex="[a-z]+")
        with pytest.raises(InvalidArgumentError, match="grammar-memory"):
            llm.generate("x", SamplingParams(max_tokens=4, structured_outputs=structure))


def test_warnings_are_pythons(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="block"), LLM(block_size=32, max_num_seqs=2) as llm:
        assert llm.info.block_size == 32
    # One that comes while the engine runs: of a drafter whose weights are all zero.
    shutil.copytree(MODELS / "pocket-dflash", tmp_path / "drafter")
    weights = tmp_path / "drafter" / "model.safetensors"
    data = weights.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    weights.write_bytes(data[:begin] + bytes(len(data) - begin))
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with LLM(MODELS / "pocket", tmp_path / "drafter", verify=2, max_num_seqs=8) as llm:
        with pytest.warns(UserWarning, match="drafter is of no use"):
            llm.generate([f"Count from {i}" for i in range(8)], long)


def test_every_parameter_of_the_engine_is_one_of_its_options() -> None:
    ours = {"model", "draft", "enable_prefix_caching", "cost_cache", "seed", "download_dir", "vllm"}
    options = _engine.EngineOptions()
    names = [name for name in inspect.signature(LLM).parameters if name not in ours]
    assert [name for name in names if not hasattr(options, name)] == []
