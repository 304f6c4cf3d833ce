"""Writes tests/data/gguf: checkpoints of tests/data/targets as GGUF files, and blocks of every type with what gguf-py makes
of them. Needs gguf (0.19) and numpy; tests/data/README.md describes the files."""
from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
ARCHITECTURES = {"DeepseekV2ForCausalLM": "deepseek2", "DeepseekV3ForCausalLM": "deepseek2",
                 "Gemma3ForCausalLM": "gemma3", "Gemma4ForConditionalGeneration": "gemma4",
                 "GptOssForCausalLM": "gpt-oss", "LlamaForCausalLM": "llama",
                 "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe",
                 "Qwen3NextForCausalLM": "qwen3next", "Qwen3_5ForCausalLM": "qwen35",
                 "Qwen3_5MoeForConditionalGeneration": "qwen35moe"}
TARGETS = ("gemma4_experts", "gemma_windows", "hybrid_experts", "hybrid_tied", "hybrid_wide", "latent_groups",
           "latent_softmax", "llama_tied", "llama_bias", "moe_single", "next_experts", "plain", "qwen2_tied")
DRAFTERS = ("markov_vanilla", "selector", "window_causal")
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "F16", "BF16", "F32")
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
         "mlp.router": "ffn_gate_inp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_b": "ssm_beta",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "router.proj": "ffn_gate_inp",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "self_attn.kv_b_proj": "attn_kv_b", "self_attn.k_b_proj": "attn_k_b", "self_attn.v_b_proj": "attn_v_b",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}
# Names of the architectures with four norms, and of those whose second norm has another name.
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
               "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2"}
POST_NORM = {"post_attention_layernorm": "post_attention_norm"}
OWN_NAMES = {"gemma3": GEMMA_NAMES, "gemma4": GEMMA_NAMES, "gpt-oss": POST_NORM, "qwen35": POST_NORM, "qwen35moe": POST_NORM,
             "qwen3next": POST_NORM}


def read_folder(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Names to dtype and bits: BF16 as uint16."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            dtype = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8}[entry["dtype"]]
            bits = np.frombuffer(data[8 + size + begin : 8 + size + end], dtype).reshape(entry["shape"])
            name = name.removeprefix("model.").removeprefix("language_model.")
            if not name.startswith(("visual.", "mtp.", "vision_tower.", "multi_modal_projector.")) or folder.parent.name == "mtp":
                tensors[name] = (entry["dtype"], bits)
    return tensors


def floats(dtype: str, bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits.astype(np.float32)


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the rows of q and k."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str, architecture: str, layers: int) -> str:
    whole = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight", "mtp.fc.weight": f"blk.{layers}.nextn.eh_proj.weight",
             "mtp.pre_fc_norm_embedding.weight": f"blk.{layers}.nextn.enorm.weight",
             "mtp.pre_fc_norm_hidden.weight": f"blk.{layers}.nextn.hnorm.weight",
             "mtp.norm.weight": f"blk.{layers}.nextn.shared_head_norm.weight"}
    if name in whole:
        return whole[name]
    first = layers if name.startswith("mtp.") else 0
    _, layer, rest = name.removeprefix("mtp.").split(".", 2)
    own = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "self_attn.sinks": "attn_sinks.weight",
           "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight", "mlp.experts.down_proj": "ffn_down_exps.weight",
           "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
           "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
           "router.per_expert_scale": "ffn_down_exps.scale",
           "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
    if rest not in own:
        module, kind = rest.rsplit(".", 1)
        own[rest] = f"{(NAMES | OWN_NAMES.get(architecture, {}))[module]}.{kind}"
    return f"blk.{first + int(layer)}.{own[rest]}"


def stacked(tensors: dict) -> dict:
    """Experts one by one become one tensor a layer."""
    result, experts = {}, {}
    for name, value in tensors.items():
        if ".ffn_expert." not in name:
            result[name] = value
            continue
        layer, rest = name.split(".ffn_expert.")
        number, part = rest.split(".")
        experts.setdefault(f"{layer}.ffn_{part}_exps.weight", {})[int(number)] = value
    for name, parts in experts.items():
        result[name] = (parts[0][0], np.stack([parts[i][1] for i in range(len(parts))]))
    return result


def tiled(rows: np.ndarray, k_heads: int, v_heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the value heads of Qwen3.5."""
    return rows.reshape(k_heads, v_heads // k_heads, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def converted(name: str, dtype: str, bits: np.ndarray, architecture: str, config: dict) -> dict:
    """A tensor of Hugging Face's as llama.cpp's converter (conversion/) writes it: one or two, or none."""
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        bits = paired(bits, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
    if architecture == "gpt-oss" and ".mlp.experts." in name:
        return oss_experts(name, bits)
    if architecture.startswith(("gemma3", "qwen35", "qwen3next")) and "norm" in name and "linear" not in name:
        dtype, bits = "F32", floats(dtype, bits) + 1
    if architecture == "gemma3" and name.endswith("q_norm.weight"):  # files have no query_pre_attn_scalar
        bits = bits * np.sqrt(np.float32(config["head_dim"] / config["query_pre_attn_scalar"]))
    if "kv_b_proj" in name and config["scoring_func"] == "sigmoid":  # as converters do since 2025
        heads = bits.reshape(config["num_attention_heads"], -1, bits.shape[-1])
        k, v = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
        return {name.replace("kv_b", "k_b"): (dtype, k.swapaxes(1, 2)), name.replace("kv_b", "v_b"): (dtype, v)}
    if "linear_attn" in name:
        k_heads, v_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        keys, values = config["linear_key_head_dim"], v_heads // k_heads * config["linear_value_head_dim"]
        if "in_proj_qkvz" in name:
            heads = bits.reshape(k_heads, -1, bits.shape[-1])
            parts = np.split(heads, np.cumsum([keys, keys, values]), axis=1)
            rows = [part.reshape(-1, bits.shape[-1]) for part in parts]
            return {name.replace("qkvz", "qkv"): (dtype, np.concatenate(rows[:3])),
                    name.replace("qkvz", "z"): (dtype, rows[3])}
        if "conv1d" in name:
            bits = bits.squeeze(1)
        if architecture.startswith("qwen35"):
            kept = 2 * k_heads * keys
            if "in_proj_qkv" in name or "conv1d" in name:
                bits = np.concatenate([bits[:kept], tiled(bits[kept:], k_heads, v_heads)])
            elif "out_proj" in name:
                bits = tiled(bits.T, k_heads, v_heads).T
            elif not name.endswith(".norm.weight"):
                bits = tiled(bits, k_heads, v_heads)
        if name.endswith("A_log"):
            dtype, bits = "F32", -np.exp(floats(dtype, bits))
    return {name: (dtype, bits)}


def oss_experts(name: str, bits: np.ndarray) -> dict:
    """Gate and up apart; a block's scale before its codes, the first half of which are the lower halves of its bytes."""
    layer, what = name.removeprefix("layers.").split(".mlp.experts.")
    of = {"gate": bits[:, 0::2], "up": bits[:, 1::2]} if "gate_up" in what else {"down": bits}
    kind = what.rsplit("_", 1)[1]
    parts = {f"blk.{layer}.ffn_{part}_exps.{kind}": value for part, value in of.items()}
    if kind == "blocks":
        codes = {key: np.stack([value & 15, value >> 4], axis=-1).reshape(*value.shape[:-1], 32)
                 for key, value in parts.items()}
        parts = {key: value[..., :16] | value[..., 16:] << 4 for key, value in codes.items()}
    return {key: ("BF16" if kind == "bias" else "U8", value) for key, value in parts.items()}


def joined_blocks(tensors: dict) -> dict:
    result = {}
    for name, (dtype, value) in tensors.items():
        if name.endswith("_exps.blocks"):
            scales = tensors[name.replace(".blocks", ".scales")][1]
            blocks = np.concatenate([scales[..., None], value], axis=-1)
            result[name.replace(".blocks", ".weight")] = ("MXFP4", blocks.reshape(*blocks.shape[:2], -1))
        elif not name.endswith("_exps.scales"):
            result[name] = (dtype, value)
    return result


def add_gemma4_values(writer: gguf.GGUFWriter, config: dict) -> None:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    wide = config["global_head_dim"]
    writer.add_head_count_kv([config["num_key_value_heads" if s else "num_global_key_value_heads"] for s in slides])
    writer.add_key_length(wide)
    writer.add_value_length(wide)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(wide)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)
    turning = int(wide * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1] * turning + [1e30] * (wide // 2 - turning), np.float32))


def add_latent_values(writer: gguf.GGUFWriter, config: dict) -> None:
    nope, rope, latent = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"))
    absorbed = config["scoring_func"] == "sigmoid"
    writer.add_head_count_kv(1 if absorbed else config["num_attention_heads"])
    writer.add_key_length(latent + rope if absorbed else nope + rope)
    writer.add_value_length(latent if absorbed else config["v_head_dim"])
    if absorbed:
        writer.add_key_length_mla(nope + rope)
        writer.add_value_length_mla(config["v_head_dim"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(latent)
    writer.add_rope_dimension_count(rope)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    if "rope_scaling" in config:
        writer.add_rope_scaling_yarn_log_mul(0.1 * config["rope_scaling"]["mscale_all_dim"])


def add_values(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"] + config.get("mtp_layers", 0))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    own = (add_gemma4_values if "global_head_dim" in config else add_latent_values if "kv_lora_rank" in config
           else None)
    if own:
        own(writer, config)
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]} | (config.get("rope_scaling") or {})
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    partial = config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1))
    if not own:
        writer.add_rope_dimension_count(int(head_dim * partial))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_eos_token_id(config["eos_token_id"])
    if "factor" in rope:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.get("rope_type") or rope["type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config["architectures"][0].startswith("Gemma3"):
        writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
    if "linear_num_key_heads" in config:
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_full_attention_interval(config.get("full_attention_interval") or
                                           config["layer_types"].index("full_attention") + 1)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if "mtp_layers" in config:
        writer.add_nextn_predict_layers(config["mtp_layers"])


def write_target(name: str, parts: int = 1, folder: Path | None = None) -> None:
    folder = folder or DATA / "targets" / name
    config = json.loads((folder / "config.json").read_text())
    config |= config.get("text_config", {})
    architecture = ARCHITECTURES[json.loads((folder / "config.json").read_text())["architectures"][0]]
    tensors = read_folder(folder)
    if name == "hybrid_tied":
        tensors |= read_folder(DATA / "mtp" / name)
        config["mtp_layers"] = 1
    stored = {}
    for tensor, (dtype, bits) in tensors.items():
        if tensor.startswith("layers.") and int(tensor.split(".")[1]) >= config["num_hidden_layers"]:
            continue  # layers that predict further tokens, which converters leave out
        for key, value in converted(tensor, dtype, bits, architecture, config).items():
            expert = key.replace(".mlp.experts.", ".ffn_expert.").replace("_proj.weight", "")
            if ".mlp.experts." in key and key.endswith("_proj.weight"):
                key = "blk." + expert.removeprefix("layers.")
            elif not key.startswith("blk."):
                key = gguf_name(key, architecture, config["num_hidden_layers"])
            stored[key] = value
    stored = joined_blocks(stacked(stored))
    path = DATA / "gguf" / f"{name}.gguf"
    split = max(1, -(-len(stored) // parts)) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_type(gguf.GGUFType.MODEL)
    add_values(writer, config)
    for tensor, (dtype, bits) in stored.items():
        if dtype == "MXFP4":
            writer.add_tensor(tensor, np.ascontiguousarray(bits), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif bits.ndim == 1 or dtype == "F32" or "_exps.bias" in tensor or "ssm_conv1d" in tensor:
            writer.add_tensor(tensor, np.ascontiguousarray(floats(dtype, bits)))
        else:
            kind = gguf.GGMLQuantizationType[dtype]
            bits = bits[0] if "gate_inp_shexp" in tensor else bits
            raw = np.ascontiguousarray(bits).view(np.uint8).reshape(*bits.shape[:-1], -1)
            writer.add_tensor(tensor, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_drafter(name: str) -> None:
    """A drafter under the names and keys of llama.cpp's converter (conversion/qwen.py, src/models/dflash.cpp)."""
    folder = DATA / "drafters" / name
    config = json.loads((folder / "config.json").read_text())
    own = config | config.get("dflash_config", {})
    config |= config.get("transformer_layer_config", {})
    layers = own.get("target_layer_ids") or [i - 1 for i in own["aux_hidden_state_layer_ids"]]
    writer = gguf.GGUFWriter(DATA / "gguf" / f"draft_{name}.gguf", "dflash")
    writer.add_type(gguf.GGUFType.MODEL)
    add_values(writer, {"eos_token_id": 1} | config | {"architectures": [""], "sliding_window": 0})
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    writer.add_uint32("tokenizer.ggml.mask_token_id", own["mask_token_id"])
    writer.add_array("dflash.target_layers", [i + 1 for i in layers])
    writer.add_uint32("dflash.block_size", own["block_size"])
    if "is_causal" in config or "speculators_config" in config:
        writer.add_causal_attention(config.get("is_causal", False))
    if "sliding_attention" in config.get("layer_types", []):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if key in own:
            writer.add_uint32(f"dflash.{key}", own[key])
    names = {"fc.weight": "fc.weight", "hidden_norm.weight": "enc.output_norm.weight",
             "norm.weight": "output_norm.weight",
             "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
             "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
             "candidate_selector.successor_codebook": "selector_successor.weight",
             "markov_head.markov_w1.weight": "markov_w1.weight", "markov_head.markov_w2.weight": "markov_w2.weight",
             "confidence_head.proj.weight": "conf_proj.weight", "confidence_head.proj.bias": "conf_proj.bias"}
    conv = {"attention_conv.base_kernel": "attn_conv_base", "mlp_conv.base_kernel": "ffn_conv_base",
            "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
            "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight"}
    for tensor, (dtype, bits) in read_folder(folder).items():
        rest = tensor.split(".", 2)[-1]
        if tensor in names:
            stored = names[tensor]
        elif rest in conv:
            stored = f"blk.{tensor.split('.')[1]}.{conv[rest]}"
        else:
            stored = gguf_name(tensor, "dflash", config["num_hidden_layers"])
        if bits.ndim == 2:
            writer.add_tensor(stored, np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), -1),
                              raw_dtype=gguf.GGMLQuantizationType[dtype])
        else:
            writer.add_tensor(stored, floats(dtype, bits))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(kind: gguf.GGMLQuantizationType, random: np.random.Generator) -> np.ndarray:
    """Four rows of 256 values. Scales are finite, everything else may be anything."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name in ("F16", "BF16", "F32"):
        numbers = random.normal(size=(4, 256)).astype(np.float32)
        return numbers if kind.name == "F32" else gguf.quants.quantize(numbers, kind).view(np.uint8).reshape(4, -1)
    blocks = random.integers(0, 256, size=(4 * 256 // values, size), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
              "Q6_K": [208], "MXFP4": []}
    for at in halves[kind.name]:
        blocks[:, at : at + 2] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = random.integers(0, 255, size=len(blocks))
    return blocks.reshape(4, -1)


def write_blocks() -> None:
    random = np.random.default_rng(40)
    writer = gguf.GGUFWriter(DATA / "gguf" / "blocks.gguf", "llama")
    for name in BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(kind, random)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", gguf.quants.dequantize(blocks, kind).reshape(4, 256))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_seed(architecture: str, model: str, more: dict | None = None) -> None:
    """A small whole file, for fuzzing to begin with."""
    folder = DATA / "fuzz" / "gguf"
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / architecture, architecture)
    add_values(writer, {"num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_size": 32,
                        "intermediate_size": 32, "num_key_value_heads": 1, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
                        "vocab_size": 4, "eos_token_id": 1, "sliding_window": 16, "architectures": [""]} | (more or {}))
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_scores([0.0, -2.0, -2.0, -1.0])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    (DATA / "gguf").mkdir(exist_ok=True)
    for name in TARGETS:
        write_target(name)
    write_target("qwen2_tied", parts=2)
    write_target("mxfp4_blocks", folder=DATA / "quantised" / "mxfp4_blocks")
    for name in DRAFTERS:
        write_drafter(name)
    write_blocks()
    write_seed("llama", "gpt2")
    write_seed("gemma3", "llama")
    write_seed("gemma4", "gemma4",
               {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "layer_types": ["full_attention"],
                "rope_parameters": {"sliding_attention": {"rope_theta": 1e4},
                                    "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}}})
    write_seed("deepseek2", "gpt2",
               {"q_lora_rank": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
                "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
                "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5,
                "norm_topk_prob": True, "scoring_func": "sigmoid"})


if __name__ == "__main__":
    main()
