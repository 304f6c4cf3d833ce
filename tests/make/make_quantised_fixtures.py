"""Writes tests/data/quantised: tiny random checkpoints that the field's own tools quantised, and what transformers makes
of the same weights widened to float32. Needs what make_fixtures.py needs, and compressed-tensors, accelerate and autoawq
(--no-deps).

Without arguments it adds what is missing; names write those folders anew.
"""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import dflash_reference
from make_fixtures import (CONTEXTS, DATA, POSITIONS, YARN, base_config, choose_delta_rule, deepseek_v3, gpt_oss, greedy_answer, is_hybrid, llama, moe, qwen3_5_moe,
                           qwen3_next, random_layers, read_target, run_target, stack_experts, write_json, write_tensors)

LEFT_ALONE = ("mlp.gate.weight", "shared_expert_gate.weight", "in_proj_a.weight", "in_proj_b.weight", "in_proj_ba.weight",
              "conv1d.weight")


def is_quantised(name, tensor):
    return tensor.dim() >= 2 and "layers." in name and not name.endswith(LEFT_ALONE)


# A scheme is a function from a matrix to its tensors, by what they add to the name of its module, and the matrix that
# these stand for.
def transformers_fp8(block, scale_fmt="float", left_alone=()):
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(block), "fmt": "e4m3",
              "modules_to_not_convert": ["lm_head", *left_alone]}
    if scale_fmt != "float":
        config["scale_fmt"] = scale_fmt
    quantizer = SimpleNamespace(quantization_config=SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt))

    def quantise(module, weight):
        stacked = weight.dim() == 3
        key = module if stacked else f"{module}.weight"
        stored = Fp8Quantize(quantizer)._quantize_one(key, weight)
        assert len(stored) == 2, f"{module}: {tuple(weight.shape)} is no multiple of {block}"
        scale = stored[key + "_scale_inv" if stacked else f"{key}_scale_inv"]
        widened = Fp8Dequantize(quantizer)._dequantize_one(stored[key], scale)
        return stored, widened.float()

    return config, quantise


def compressed(format_name, args, only="", **more):
    """compressed-tensors. An act-order's g_idx is random, as far as groups keep their sizes. `only`: of the modules."""
    weights = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, **more)
    tool = BaseCompressor.get_value_from_registry(format_name)
    config = {"quant_method": "compressed-tensors", "format": format_name, "quantization_status": "compressed",
              "config_groups": {"group_0": json.loads(scheme.model_dump_json())}, "global_compression_ratio": None,
              "kv_cache_scheme": None, "ignore": ["lm_head", "re:.*mlp.gate$"]}

    def ranges(weight):
        strategy, size = str(args["strategy"]), args.get("group_size")
        if strategy == "tensor":
            return weight.min().reshape(1), weight.max().reshape(1)
        if strategy == "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        if strategy == "block":
            rows, columns = args["block_structure"]
            tiles = [[weight[i:i + rows, j:j + columns] for j in range(0, weight.shape[1], columns)]
                     for i in range(0, weight.shape[0], rows)]
            return (torch.stack([torch.stack([t.min() for t in row]) for row in tiles]),
                    torch.stack([torch.stack([t.max() for t in row]) for row in tiles]))
        groups = weight.unflatten(1, (-1, size))
        return groups.amin(2), groups.amax(2)

    def quantise(module, weight):
        if only not in module:
            return None
        weight = weight.bfloat16()
        low, high = ranges(weight)
        state = {"weight": weight}
        if strategy_is(args, "tensor_group"):
            state["weight_global_scale"] = generate_gparam(low.min().float(), high.max().float()).reshape(1)
        scale, zero = calculate_qparams(low, high, weights, state.get("weight_global_scale"))
        state |= {"weight_scale": scale, "weight_zero_point": zero}
        stored = tool.compress(state, scheme)
        if "weight_global_scale" in stored:  # the library widens in bfloat16
            codes = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
            scales = stored["weight_scale"].float() / stored["weight_global_scale"]
            widened = codes * scales.repeat_interleave(16, dim=1)
        else:  # with scales in float32 nothing is rounded; powers of two stay as they are
            scale = stored["weight_scale"]
            wide = {**stored, "weight_scale": scale if scale.dtype == torch.uint8 else scale.float()}
            widened = tool.decompress(wide, scheme)["weight"].float()
        return {f"{module}.{name}": tensor for name, tensor in stored.items()}, widened

    return config, quantise


def strategy_is(args, name):
    return args["strategy"] == name


def modelopt_fp8():
    """One scale for a matrix, and a static one for activations, which are read and not used."""
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"],
              "producer": {"name": "modelopt", "version": "0.39"}}

    def quantise(module, weight):
        scale = weight.abs().max() / 448
        codes = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = {f"{module}.weight": codes, f"{module}.weight_scale": scale, f"{module}.input_scale": torch.tensor(0.5)}
        for name, scale_of_layer in (("k", 0.02), ("v", 0.03)):  # of the cache: they change nothing elsewhere
            if module.endswith(f"{name}_proj"):
                stored[f"{module}.{name}_scale"] = torch.tensor(scale_of_layer * (int(module.split(".")[2]) + 1))
        return stored, codes.float() * scale

    return config, quantise


INT4 = {"num_bits": 4, "type": "int", "dynamic": False}
FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
def round_to_groups(weight, group, zero_from):
    """4-bit codes [n, k], fp16 scales and zero points [n, groups], from the least value of a group to its largest."""
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low) / 15).half()
    zeros = (-torch.round(low / scales.float())).clamp(zero_from, 15)
    codes = (torch.round(groups / scales.float().unsqueeze(2)) + zeros.unsqueeze(2)).clamp(0, 15)
    return codes.flatten(1).int(), scales, zeros.int()


def packed(values, order=range(8)):
    """Eight of the last dimension to an int32; nibble i holds value order[i]."""
    words = values.unflatten(-1, (-1, 8))[..., list(order)].long()
    words = (words << torch.arange(0, 32, 4)).sum(-1)
    return (words - (words >= 2**31).long() * 2**32).int()


def autoawq(group):
    # Its own package initialises far more than the layer that packs.
    if "awq" not in sys.modules:
        package = types.ModuleType("awq")
        package.__path__ = list(importlib.util.find_spec("awq").submodule_search_locations)
        sys.modules["awq"] = package
    layer = importlib.import_module("awq.modules.linear.gemm").WQLinear_GEMM
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}

    def quantise(module, weight):
        codes, scales, zeros = round_to_groups(weight, group, 0)
        wide = scales.float().repeat_interleave(group, dim=1)
        widened = (codes - zeros.repeat_interleave(group, dim=1)) * wide
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float16)
        linear.weight.data = widened.half()
        stored = layer.from_linear(linear, 4, group, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
        return {f"{module}.{name}": tensor for name, tensor in stored.state_dict().items()}, widened

    return config, quantise


def gptq(group, act_order=False, version="gptq"):
    """In the layout of gptqmodel and AutoGPTQ, whose packers do not install here: words along k, zero points along n,
    less 1 in the first version."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": act_order, "sym": False,
              "checkpoint_format": version, "damp_percent": 0.01, "true_sequential": True, "static_groups": False}

    def quantise(module, weight):
        n, k = weight.shape
        size = group if group > 0 else k
        order = torch.arange(k)
        if act_order:
            order = torch.randperm(k, generator=torch.Generator().manual_seed(k))
        codes, scales, zeros = round_to_groups(weight[:, order], size, 1)
        place = torch.argsort(order)  # of a column of the matrix among those that were grouped
        group_of = (place // size).int()
        codes = codes[:, place]
        stored = {f"{module}.qweight": packed(codes).t(), f"{module}.scales": scales.t(),
                  f"{module}.qzeros": packed((zeros - int(version == "gptq")).t()), f"{module}.g_idx": group_of}
        return stored, (codes - zeros[:, group_of]) * scales.float()[:, group_of]

    return config, quantise


def transformers_mxfp4():
    """Experts alone, in blocks of rows that are outputs; their plain form is transposed."""
    config = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def quantise(module, weight):
        if weight.dim() != 3:
            return None
        groups = weight.transpose(1, 2).unflatten(2, (-1, 32))
        exponent = torch.floor(torch.log2(groups.abs().amax(3, keepdim=True))) - 2
        scaled = groups / 2**exponent
        codes = (scaled.abs().unsqueeze(-1) - magnitudes).abs().argmin(-1) + 8 * (scaled < 0)
        blocks = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        scales = (exponent.squeeze(3) + 127).to(torch.uint8)
        widened = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        return {f"{module}_blocks": blocks, f"{module}_scales": scales}, widened.float()

    return config, quantise


DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}

# name: (config, scheme, stacked experts). The seed is a name's place: add at the end.
FIXTURES = {
    "fp8_block": (base_config(64, 4, 2, 16, 96, 79, 2, False), transformers_fp8((16, 32)), False),
    "fp8_experts_ue8m0": (moe(64, 4, 2, 16, 32, 73, 2, False, experts=5, chosen=2, inner=32),
                          transformers_fp8((32, 16), "ue8m0"), False),
    "fp8_stacked": (qwen3_5_moe(32, 2, 2, 32, None, 79, 2, True, k_heads=1, v_heads=2, k_dim=16, v_dim=16, experts=4,
                                chosen=2, inner=16, shared=32, full_attention_interval=2, partial_rotary_factor=0.25),
                    transformers_fp8((16, 16)), True),
    "fp8_channel": (llama(48, 6, 2, 16, 80, 67, 2, False), compressed(
        "float-quantized", {**FP8, "strategy": "channel"}, input_activations=QuantizationArgs(**DYNAMIC)), False),
    "fp8_partial_blocks": (base_config(72, 4, 1, 16, 88, 61, 2, False), compressed(
        "float-quantized", {**FP8, "strategy": "block", "block_structure": [24, 48]},
        input_activations=QuantizationArgs(**DYNAMIC)), False),
    "fp8_tensor": (base_config(48, 3, 1, 16, 64, 71, 2, True), modelopt_fp8(), False),
    "int4_group32": (base_config(64, 4, 2, 16, 96, 73, 2, False), compressed(
        "pack-quantized", {**INT4, "symmetric": True, "strategy": "group", "group_size": 32}), False),
    "int4_zeros": (moe(64, 4, 2, 16, 32, 69, 2, False, experts=4, chosen=2, inner=32), compressed(
        "pack-quantized", {**INT4, "symmetric": False, "strategy": "group", "group_size": 16}), False),
    "int4_channel": (llama(72, 4, 2, 16, 88, 63, 2, False), compressed(
        "pack-quantized", {**INT4, "symmetric": False, "strategy": "channel"}), False),
    "nvfp4": (base_config(64, 4, 2, 16, 96, 77, 2, False), compressed(
        "nvfp4-pack-quantized", {**FP4, "strategy": "tensor_group", "group_size": 16}), False),
    "mxfp4": (moe(64, 4, 2, 16, 32, 74, 2, False, experts=4, chosen=2, inner=32), compressed(
        "mxfp4-pack-quantized", {**FP4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}), False),
    "awq": (llama(64, 4, 2, 16, 96, 81, 2, False), autoawq(32), False),
    "gptq": (base_config(64, 4, 2, 16, 96, 83, 2, False), gptq(32), False),
    "gptq_act_order": (llama(64, 4, 2, 16, 64, 70, 2, False), gptq(16, act_order=True), False),
    "gptq_v2_channel": (moe(48, 3, 1, 16, 24, 66, 2, False, experts=4, chosen=2, inner=24), gptq(-1, version="gptq_v2"),
                        False),
    "mxfp4_blocks": (gpt_oss(64, 4, 2, 16, 32, 80, 2, False, experts=5, chosen=2, window=9), transformers_mxfp4(), False),
    # As Qwen3-Coder-Next in FP8 is published: blocks, names and what is left alone.
    "fp8_next": (qwen3_next(128, 4, 2, 64, 160, 94, 2, False, k_heads=2, v_heads=4, k_dim=32, v_dim=64, experts=3,
                            chosen=2, inner=128, shared=128, partial_rotary_factor=0.25, full_attention_interval=2,
                            decoder_sparse_step=1, mlp_only_layers=[]),
                 transformers_fp8((128, 128), left_alone=[
                     "model.embed_tokens", "model.layers.0.linear_attn.conv1d", "model.layers.0.linear_attn.in_proj_ba",
                     *(f"model.layers.{i}.mlp.{gate}" for i in range(2) for gate in ("gate", "shared_expert_gate"))]),
                 False),
    # Heads of 24 rows, which end inside blocks.
    "fp8_latent": (deepseek_v3(64, 4, 48, 85, 2, q_rank=32, width=32, nope=8, rope=16, value=16, experts=4, chosen=2,
                               inner=32, shared=1, dense=1, scaling=2.5, n_group=2, topk_group=1,
                               num_nextn_predict_layers=0), transformers_fp8((16, 16)), False),
    # As Kimi K2.5 is published: experts alone, in a checkpoint that also has vision.
    "int4_kimi": (deepseek_v3(64, 4, 48, 87, 3, q_rank=32, width=32, nope=12, rope=16, value=20, experts=6, chosen=2,
                              inner=32, shared=1, dense=1, scaling=2.827, n_group=1, topk_group=1, rms_norm_eps=1e-5,
                              num_nextn_predict_layers=0, rope_theta=50000.0, rope_scaling={
                                  "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
                                  "beta_slow": 1.0, **YARN}), compressed(
        "pack-quantized", {**INT4, "symmetric": True, "strategy": "group", "group_size": 32}, only=".experts."), False),
}


def nest_kimi(config, stored):
    """The files of Kimi K2.5 whose decoder that is."""
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
             "text_config": {**config, "model_type": "kimi_k2"}, "media_placeholder_token_id": 5, "ignore_index": -100,
             "vision_config": {"vt_hidden_size": 16}, "tie_word_embeddings": False}
    tensors = {f"language_model.{name}": tensor for name, tensor in stored.items()}
    vision = {name: torch.ones(16) for name in ("vision_tower.patch_embed.proj.bias", "mm_projector.pre_norm.weight")}
    return outer, {**tensors, **vision}


@torch.no_grad()
def make(index, name):
    config, (quantization, quantise), stacked = FIXTURES[name]
    config = {key: value for key, value in config.items() if value is not None}
    generator = torch.Generator().manual_seed(5000 + index)
    tensors = random_layers(config, generator)
    if stacked:
        tensors = stack_experts(tensors, config["num_hidden_layers"], config["num_experts"])
    tensors = {f"model.{n}": t for n, t in tensors.items()}
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    tied = config["tie_word_embeddings"]
    tensors["model.embed_tokens.weight"] = (0.1 if tied else 0.5) * torch.randn(vocab, hidden, generator=generator)
    if not tied:
        tensors["lm_head.weight"] = torch.randn(vocab, hidden, generator=generator) * hidden**-0.5
    stored, widened = {}, {}
    for key, tensor in tensors.items():
        codes = quantise(key.removesuffix(".weight"), tensor) if is_quantised(key, tensor) else None
        if codes:
            widened[key] = codes[1]
            stored |= codes[0]
        else:
            stored[key] = tensor.bfloat16()
            widened[key] = stored[key].float()
    folder = DATA / "quantised" / name
    files = {**config, "torch_dtype": "bfloat16", "quantization_config": quantization}
    if name == "int4_kimi":
        files, stored = nest_kimi(files, stored)
    write_tensors(folder, stored)
    write_json(folder / "config.json", files)
    ids = torch.randint(vocab, (POSITIONS,), generator=generator).tolist()
    if is_hybrid(config):
        choose_delta_rule(chunked=False)
    with tempfile.TemporaryDirectory() as reference:
        write_tensors(Path(reference), widened)
        write_json(Path(reference) / "config.json", {**config, "torch_dtype": "float32"})
        expected = {"prompt_ids": torch.tensor(ids).float(), "logits": run_target(Path(reference), ids)[0]}
        expected["greedy_ids"] = torch.tensor(greedy_answer(Path(reference), ids)).float()
    write_tensors(folder / "expected", expected)


# Quantised drafters of tests/data/drafters: the name, what it is made from, and the scheme.
DRAFTERS = {"quantised": ("one_layer", transformers_fp8((32, 16)))}


@torch.no_grad()
def make_drafter(name):
    source, (quantization, quantise) = DRAFTERS[name]
    source, folder = DATA / "drafters" / source, DATA / "drafters" / name
    config = json.loads((source / "config.json").read_text())
    tensors, expected = (load_file(path / "model.safetensors") for path in (source, source / "expected"))
    target = (source / "expected" / "target.txt").read_text()
    stored, widened = {}, {}
    for key, tensor in tensors.items():
        widened[key] = tensor.float()
        codes = quantise(key.removesuffix(".weight"), tensor.float()) if is_quantised(key, tensor) else None
        stored |= codes[0] if codes else {key: tensor}
        if codes:
            widened[key] = codes[1]
    embeddings = read_target(target.strip())["embeddings"]
    for context in CONTEXTS:
        block = expected[f"block_ids.{context}"].long()
        hidden = dflash_reference.draft_hidden(config, widened, expected["features"][:context], embeddings[block])
        expected[f"hidden.{context}"] = hidden.float()
    write_tensors(folder, stored)
    write_json(folder / "config.json", {**config, "quantization_config": quantization})
    write_tensors(folder / "expected", expected)
    (folder / "expected" / "target.txt").write_text(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for index, name in enumerate(FIXTURES):
        folder = DATA / "quantised" / name
        if name in options.names or not (options.names or folder.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            make(index, name)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            print(f"{name}: {size / 1e3:.0f} kB")
    for name in DRAFTERS:
        if name in options.names or not (options.names or (DATA / "drafters" / name).exists()):
            shutil.rmtree(DATA / "drafters" / name, ignore_errors=True)
            make_drafter(name)


if __name__ == "__main__":
    main()
