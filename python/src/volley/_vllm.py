"""Options of vLLM's LLM that are not ours: taken where they mean something here or change nothing, else refused by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

# Ours under another name.
_RENAMED = {
    "gpu_memory_utilization": "memory_fraction",
    "num_gpu_blocks_override": "kv_pages",
    "kv_cache_memory_bytes": "kv_memory_bytes",
}

# Whatever they say, answers and what they need are the same: there is nothing that they could turn on or off.
_HARMLESS = frozenset("""async_scheduling code_revision cuda_graph_sizes disable_async_output_proc disable_cascade_attn
disable_custom_all_reduce disable_log_requests disable_log_stats enable_log_requests hf_token ignore_patterns max_logprobs
max_parallel_loading_workers max_seq_len_to_capture prefix_caching_hash_algo ray_workers_use_nsight served_model_name
swap_space trust_remote_code use_tqdm_on_load use_v2_block_manager""".split())

_Neutral = tuple[tuple[Any, ...], str]
_PICTURES: _Neutral = ((None, {}), "leave it out: max_picture_pixels bounds a picture")
_IN_THE_FOLDER: _Neutral = ((None, {}), "write it into a copy of the model's config.json")
_REVISION: _Neutral = ((None, "main"), "name the folder of that revision, which hf download --revision prints")

# The values that ask for what is so anyway, and what to do instead of others.
_NEUTRAL: dict[str, _Neutral] = {
    "additional_config": ((None, {}), "there is nothing else to configure"),
    "allowed_local_media_path": ((None, ""), "read the file and give its bytes"),
    "calculate_kv_scales": ((False,), "scales of an fp8 cache come from the checkpoint"),
    "chat_template": ((None,), "put it into the model's folder as chat_template.jinja"),
    "compilation_config": ((None, {}, 0), "nothing is compiled here: leave it out"),
    "config_format": (("auto", "hf"), "the folder must have Hugging Face's config.json"),
    "convert": (("auto", "none"), "models generate text alone"),
    "cpu_offload_gb": ((0,), "weights stay on one device: use quantization='fp8' or 'int4'"),
    "distributed_executor_backend": ((None, "mp", "uni"), "ranks are threads of this process"),
    "enable_chunked_prefill": ((None, True), "prompts are always computed in chunks: prefill_chunk says how large"),
    "enable_lora": ((False,), "adapters are not built"),
    "enable_prompt_embeds": ((False,), "prompts are texts or token ids"),
    "enable_sleep_mode": ((False,), "close() frees the models"),
    "generation_config": (("auto",), "give sampling_params"),
    "guided_decoding_backend": (("auto", "guidance"), "grammars have one backend"),
    "hf_config_path": ((None,), "config.json must stand in the model's folder"),
    "hf_overrides": _IN_THE_FOLDER,
    "kv_events_config": ((None,), "use volley serve --kv-events-config"),
    "kv_transfer_config": ((None,), "caches are not passed on"),
    "limit_mm_per_prompt": _PICTURES,
    "load_format": (("auto", "safetensors"), "use dummy_weights=SEED for random weights"),
    "logits_processors": ((None, []), "use logit_bias, bad_words or structured_outputs of SamplingParams"),
    "long_prefill_token_threshold": ((0,), "use target_step_ms"),
    "max_long_partial_prefills": ((1,), "use target_step_ms"),
    "max_num_partial_prefills": ((1,), "use target_step_ms"),
    "mm_processor_kwargs": _PICTURES,
    "model_impl": (("auto", "vllm"), "there is one implementation of each family"),
    "model_loader_extra_config": ((None, {}), "use mmap"),
    "num_scheduler_steps": ((1,), "leave it out"),
    "override_generation_config": ((None, {}), "give sampling_params"),
    "override_pooler_config": ((None,), "models generate text alone"),
    "pipeline_parallel_size": ((1,), "use tensor_parallel_size: layers are not divided among GPUs"),
    "pooler_config": ((None,), "models generate text alone"),
    "preemption_mode": ((None, "recompute"), "a preempted request is computed again"),
    "reasoning_parser": ((None, ""), "the text has the thoughts as written; volley serve parts them"),
    "revision": _REVISION,
    "rope_scaling": _IN_THE_FOLDER,
    "rope_theta": ((None,), "write it into a copy of the model's config.json"),
    "runner": (("auto", "generate"), "models generate text alone"),
    "scheduling_policy": (("fcfs", "priority"), "requests go by priority, then by their time"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always loaded"),
    "structured_outputs_config": ((None, {}), "grammars have one backend"),
    "task": (("auto", "generate"), "models generate text alone"),
    "tokenizer_mode": (("auto", "hf", "slow"), "the tokenizer is the folder's tokenizer.json"),
    "tokenizer_revision": _REVISION,
    "worker_cls": (("auto",), "there is one kind of worker"),
}


def from_vllm(given: Mapping[str, Any], known: Callable[..., Any]) -> dict[str, Any]:
    """What `given` comes to under our names. `known`: has the names that are ours, to say which one was meant.

    A ValueError names what cannot be; a TypeError what is no option of either.
    """
    ours: dict[str, Any] = {}
    for name, value in given.items():
        if name in _RENAMED:
            ours[_RENAMED[name]] = value
        elif name == "enforce_eager":
            if not isinstance(value, bool):
                raise ValueError(f"enforce_eager is {value!r}: it must be True or False")
            if value:
                ours["graphs"] = False
        elif name == "speculative_config":
            ours |= _drafter(value)
        elif name in _NEUTRAL:
            _refuse_others(name, value)
        elif name not in _HARMLESS:
            raise TypeError(_unknown(name, known))
    return ours


def _refuse_others(name: str, value: Any) -> None:
    accepted, instead = _NEUTRAL[name]
    # True is no 1.
    if not any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in accepted):
        raise ValueError(f"{name}={value!r} is not supported: {instead}")


def _drafter(config: Any) -> dict[str, Any]:
    """Of vLLM's {"method": "dflash", "model": DRAFTER, "num_speculative_tokens": N}."""
    if config is None:
        return {}
    if not isinstance(config, Mapping) or config.get("method", "dflash") != "dflash" or not config.get("model"):
        raise ValueError(f"speculative_config is {config!r}: it must be a dict with the method 'dflash' and a model")
    for name in config:
        if name not in ("method", "model", "num_speculative_tokens"):
            raise ValueError(f"speculative_config has {name}, which is not supported: draft=… and verify=… say it all")
    ours = {"draft": config["model"]}
    if config.get("num_speculative_tokens") is not None:
        ours["verify"] = config["num_speculative_tokens"]
    return ours


def _unknown(name: str, known: Callable[..., Any]) -> str:
    names = [*inspect.signature(known).parameters, *_RENAMED, *_HARMLESS, *_NEUTRAL]
    near = difflib.get_close_matches(name, [one for one in names if one not in ("self", "vllm")], 1)
    return f"there is no option {name}" + (f" (did you mean {near[0]}?)" if near else "") + ": help(LLM) lists them"
