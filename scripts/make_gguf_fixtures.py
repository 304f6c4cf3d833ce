"""Writes tests/data/gguf: checkpoints of tests/data/targets as GGUF files, and blocks of every type with what gguf-py makes
of them. Needs gguf (0.19) and numpy; tests/data/README.md describes the files."""
from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
                 "Qwen3MoeForCausalLM": "qwen3moe"}
TARGETS = ("llama_tied", "llama_bias", "qwen2_tied", "plain", "moe_single")
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "F16", "BF16", "F32")
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}


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
            dtype = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[entry["dtype"]]
            bits = np.frombuffer(data[8 + size + begin : 8 + size + end], dtype).reshape(entry["shape"])
            tensors[name.removeprefix("model.")] = (entry["dtype"], bits)
    return tensors


def floats(dtype: str, bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits.astype(np.float32)


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the rows of q and k."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    whole = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[module]}.{kind}"


def stacked(tensors: dict) -> dict:
    """Experts one by one become one tensor a layer."""
    result, experts = {}, {}
    for name, value in tensors.items():
        if ".mlp.experts." not in name:
            result[gguf_name(name)] = value
            continue
        layer, rest = name.removeprefix("layers.").split(".mlp.experts.")
        number, part = rest.removesuffix("_proj.weight").split(".")
        experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(number)] = value
    for name, parts in experts.items():
        result[name] = (parts[0][0], np.stack([parts[i][1] for i in range(len(parts))]))
    return result


def add_values(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_eos_token_id(config["eos_token_id"])
    if scaling := config.get("rope_scaling"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def write_target(name: str, parts: int = 1) -> None:
    folder = DATA / "targets" / name
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    tensors = stacked(read_folder(folder))
    path = DATA / "gguf" / f"{name}.gguf"
    split = max(1, -(-len(tensors) // parts)) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_type(gguf.GGUFType.MODEL)
    add_values(writer, config)
    for tensor, (dtype, bits) in tensors.items():
        if architecture == "llama" and (".attn_q." in tensor or ".attn_k." in tensor):
            heads = config["num_attention_heads" if ".attn_q." in tensor else "num_key_value_heads"]
            bits = paired(bits, heads)
        if bits.ndim == 1 or dtype == "F32":
            writer.add_tensor(tensor, floats(dtype, bits))
        else:
            kind = gguf.GGMLQuantizationType[dtype]
            raw = np.ascontiguousarray(bits).view(np.uint8).reshape(*bits.shape[:-1], -1)
            writer.add_tensor(tensor, raw, raw_dtype=kind)
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


def write_seed(architecture: str, model: str) -> None:
    """A small whole file, for fuzzing to begin with."""
    folder = DATA / "fuzz" / "gguf"
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / architecture, architecture)
    add_values(writer, {"num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_size": 32,
                        "intermediate_size": 32, "num_key_value_heads": 1, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
                        "vocab_size": 4, "eos_token_id": 1})
    writer.add_sliding_window(16)
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
    write_blocks()
    write_seed("llama", "gpt2")
    write_seed("gemma3", "llama")


if __name__ == "__main__":
    main()
