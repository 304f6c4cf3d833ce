"""Writes the fixtures under tests/data: tiny random checkpoints, and what transformers and the DFlash reference make of
them. Needs torch, transformers and safetensors; run it from anywhere. tests/data/README.md describes the files.
"""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

import dflash_reference

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
POSITIONS = 40  # of each target's prompt: two pages of 16 and a part of a third
CONTEXTS = (1, 9, 40)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}


def base_config(hidden, heads, kv_heads, head_dim, ffn, vocab, layers, tied, **more):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": ffn,
        "vocab_size": vocab, "num_hidden_layers": layers, "tie_word_embeddings": tied, "hidden_act": "silu",
        "attention_bias": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 10000.0,
        "eos_token_id": 1, "use_sliding_window": False, "sliding_window": None, **more,
    }


# name: (config, dtype, shards)
TARGETS = {
    "plain": (base_config(64, 4, 2, 16, 128, 128, 2, True), "bf16", 1),
    "odd_vocab_linear": (base_config(80, 6, 1, 32, 92, 131, 2, False,
                                     rope_scaling={"type": "linear", "factor": 2.5}), "bf16", 1),
    "mha_llama3": (base_config(72, 2, 2, 64, 80, 150, 2, True, rope_theta=500000.0,
                               rope_scaling={"rope_type": "llama3", **LLAMA3}), "bf16", 1),
    "wide_heads_yarn": (base_config(48, 2, 1, 128, 80, 120, 2, False,
                                    rope_scaling={"type": "yarn", **YARN}), "fp16", 1),
    "narrow_fp32": (base_config(40, 4, 2, 16, 56, 97, 3, True, rope_theta=1000000.0, rms_norm_eps=1e-5), "fp32", 1),
    "sharded": (base_config(64, 4, 2, 32, 68, 101, 3, False, rope_theta=None,
                            rope_parameters={"rope_type": "default", "rope_theta": 25000.0}), "bf16", 3),
    "deep_yarn": (base_config(32, 2, 2, 48, 44, 61, 4, True, rope_theta=None, rope_parameters={
        "rope_type": "yarn", "rope_theta": 50000.0, "truncate": False, "beta_fast": 16, "beta_slow": 2,
        "attention_factor": 1.2, **YARN}), "fp32", 1),
}


def drafter_config(target, heads, kv_heads, head_dim, ffn, layers, dflash, **more):
    t = TARGETS[target][0]
    config = base_config(t["hidden_size"], heads, kv_heads, head_dim, ffn, t["vocab_size"], layers, False)
    return {**config, "architectures": ["DFlashDraftModel"], "num_target_layers": t["num_hidden_layers"],
            "dflash_config": dflash, **more}


# name: (target, config, dtype, prefix of the tensor names)
DRAFTERS = {
    "one_layer": ("plain", drafter_config("plain", 2, 1, 32, 96, 1, {"mask_token_id": 127}, block_size=8), "bf16", ""),
    "three_features": ("sharded", drafter_config(
        "sharded", 8, 2, 16, 72, 2, {"mask_token_id": 3, "target_layer_ids": [2, 0, 1]}, block_size=16), "bf16", ""),
    "window_bidirectional": ("narrow_fp32", drafter_config(
        "narrow_fp32", 2, 2, 32, 48, 3, {"mask_token_id": 96, "target_layer_ids": [0, 2], "block_size": 16},
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=6,
        use_sliding_window=True, is_causal=False), "fp32", ""),
    "window_causal": ("wide_heads_yarn", drafter_config(
        "wide_heads_yarn", 6, 3, 16, 64, 2, {"mask_token_id": 5, "target_layer_ids": [1]}, block_size=4,
        layer_types=["sliding_attention", "full_attention"], sliding_window=11, use_sliding_window=True), "bf16", ""),
    "causal": ("mha_llama3", drafter_config(
        "mha_llama3", 3, 1, 48, 60, 2, {"mask_token_id": 149, "target_layer_ids": [0, 1], "causal": True},
        block_size=8), "fp16", ""),
    "own_rope": ("deep_yarn", drafter_config(
        "deep_yarn", 1, 1, 64, 40, 2, {"mask_token_id": 0, "target_layer_ids": [0, 3]}, block_size=4,
        rope_theta=70000.0, rope_scaling={"rope_type": "llama3", **LLAMA3}), "fp32", "model."),
}

# Frequencies alone, at the sizes of real models. name: (head_dim, max positions, rope fields)
ROPES = {
    "none": (128, 40960, {"rope_theta": 1000000.0}),
    "linear": (64, 8192, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    "llama3": (128, 131072, {"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8192}}),
    "yarn": (128, 131072, {"rope_theta": 1000000.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
    "yarn_mscale": (64, 16384, {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
        "mscale": 0.707, "mscale_all_dim": 1.1, "beta_fast": 24, "beta_slow": 2}}),
    "yarn_untruncated": (96, 16384, {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "truncate": False}}),
}
ROPE_POSITIONS = [0, 1, 2, 7, 63, 500, 1023, 4097, 8191]


def write_json(path: Path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_tensors(folder: Path, tensors, shards=1):
    """As one file, or as `shards` files and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def random_layers(config, generator):
    """Tensors of the decoder layers and the last norm. Norm weights are not all one, so that a norm left out shows."""
    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def norm(n):
        return 1 + 0.3 * torch.randn(n, generator=generator)

    hidden, ffn, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    tensors = {"norm.weight": norm(hidden)}
    for i in range(config["num_hidden_layers"]):
        tensors |= {f"layers.{i}.{name}.weight": value for name, value in {
            "input_layernorm": norm(hidden), "post_attention_layernorm": norm(hidden),
            "self_attn.q_proj": matrix(q, hidden), "self_attn.k_proj": matrix(kv, hidden),
            "self_attn.v_proj": matrix(kv, hidden), "self_attn.o_proj": matrix(hidden, q),
            "self_attn.q_norm": norm(d), "self_attn.k_norm": norm(d), "mlp.gate_proj": matrix(ffn, hidden),
            "mlp.up_proj": matrix(ffn, hidden), "mlp.down_proj": matrix(hidden, ffn)}.items()}
    return tensors


@torch.no_grad()
def run_target(folder: Path, ids):
    """Logits and layer outputs of transformers: float32, eager attention. The last layer's output is taken before the
    final norm, which transformers' own list of hidden states has already applied."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    outputs = []
    hooks = [layer.register_forward_hook(lambda module, args, out: outputs.append(out)) for layer in model.model.layers]
    logits = model(torch.tensor([ids])).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, torch.stack([(o[0] if isinstance(o, tuple) else o).reshape(len(ids), -1) for o in outputs])


def make_target(index, name):
    config, dtype, shards = TARGETS[name]
    config = {key: value for key, value in config.items() if value is not None}
    generator = torch.Generator().manual_seed(1000 + index)
    folder = DATA / "targets" / name
    tensors = {f"model.{n}": t for n, t in random_layers(config, generator).items()}
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    tensors["model.embed_tokens.weight"] = 0.5 * torch.randn(vocab, hidden, generator=generator)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(vocab, hidden, generator=generator) * hidden**-0.5
    write_tensors(folder, {n: t.to(DTYPES[dtype]) for n, t in tensors.items()}, shards)
    write_json(folder / "config.json", {**config, "torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")})
    ids = torch.randint(vocab, (POSITIONS,), generator=generator).tolist()
    logits, layers = run_target(folder, ids)
    write_tensors(folder / "expected", {"prompt_ids": torch.tensor(ids).float(), "logits": logits, "layers": layers})
    embeddings = tensors["model.embed_tokens.weight"].to(DTYPES[dtype]).float()
    return {"ids": ids, "logits": logits, "layers": layers, "embeddings": embeddings}


def make_drafter(index, name, targets):
    target_name, config, dtype, prefix = DRAFTERS[name]
    target = targets[target_name]
    generator = torch.Generator().manual_seed(2000 + index)
    folder = DATA / "drafters" / name
    layer_ids = dflash_reference.target_layers(config)
    hidden = config["hidden_size"]
    tensors = random_layers(config, generator)
    wide = len(layer_ids) * hidden
    tensors["fc.weight"] = torch.randn(hidden, wide, generator=generator) * wide**-0.5
    tensors["hidden_norm.weight"] = 1 + 0.3 * torch.randn(hidden, generator=generator)
    tensors = {prefix + n: t.to(DTYPES[dtype]) for n, t in tensors.items()}
    write_tensors(folder, tensors)
    write_json(folder / "config.json", {**config, "torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")})

    features = torch.cat([target["layers"][i] for i in layer_ids], dim=-1)
    block_size = config.get("block_size") or config["dflash_config"]["block_size"]
    expected = {"features": features}
    for context in CONTEXTS:
        last = target["ids"][context] if context < POSITIONS else int(target["logits"][-1].argmax())
        block = torch.tensor([last] + [config["dflash_config"]["mask_token_id"]] * (block_size - 1))
        hidden_states = dflash_reference.draft_hidden(config, tensors, features[:context], target["embeddings"][block])
        expected[f"block_ids.{context}"] = block.float()
        expected[f"hidden.{context}"] = hidden_states.float()
    write_tensors(folder / "expected", expected)


def make_rope(name):
    head_dim, max_positions, fields = ROPES[name]
    config = {**base_config(head_dim, 1, 1, head_dim, 16, 16, 1, True), "max_position_embeddings": max_positions}
    del config["rope_theta"]
    config |= fields
    folder = DATA / "rope" / name
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    rotary = Qwen3RotaryEmbedding(Qwen3Config(**config))
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.tensor([ROPE_POSITIONS]))
    cos, sin = (t[0, :, :head_dim // 2].clone() for t in (cos, sin))
    write_tensors(folder, {"inv_freq": rotary.inv_freq, "cos": cos, "sin": sin})


POCKET_PROMPTS = {
    24: "Ava has 12 apples. Ben has 7 more apples than Ava. How many apples do they have together?",
    48: "Sort these words: river, stone, cloud, apple, tiger, window, garden, silver, candle, bridge. Then count them, "
        "and say which one comes last. Answer with the list alone.",
    96: "Write a short story about a curious fox in Lisbon who finds a golden lantern at the harbor. One night the fox "
        "carries it through the rain to the old station, where a quiet owl keeps a map of every lamp in the city. They "
        "light them together, one after the other, until the whole street is bright, and the clock strikes twelve.",
}


def make_pocket():
    """Real text through the model in models/pocket; margins tell where the choice is too close to compare."""
    folder = ROOT / "models" / "pocket"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = {}
    for length, text in POCKET_PROMPTS.items():
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert len(ids) >= length, f"the prompt of {length} tokens has only {len(ids)}"
        ids = ids[:length]
        logits, _ = run_target(folder, ids)
        best = logits.topk(2, dim=-1)
        expected[f"prompt_ids.{length}"] = torch.tensor(ids).float()
        expected[f"argmax.{length}"] = best.indices[:, 0].float()
        expected[f"margin.{length}"] = best.values[:, 0] - best.values[:, 1]
        expected[f"last_logits.{length}"] = logits[-1].clone()
    write_tensors(DATA / "pocket", expected)


def main():
    for kind in ("targets", "drafters", "rope", "pocket"):
        shutil.rmtree(DATA / kind, ignore_errors=True)
    targets = {name: make_target(i, name) for i, name in enumerate(TARGETS)}
    for i, name in enumerate(DRAFTERS):
        make_drafter(i, name, targets)
    for name in ROPES:
        make_rope(name)
    make_pocket()
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{total / 1e6:.2f} MB under {DATA.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
