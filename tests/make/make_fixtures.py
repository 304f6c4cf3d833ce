"""Writes the fixtures under tests/data: tiny random checkpoints, and what transformers and the DFlash reference make of
them. Needs torch, transformers and safetensors; run it from anywhere. tests/data/README.md describes the files.

Without arguments it adds what is missing; `--all` writes everything anew, and names write those folders anew.
"""
from __future__ import annotations

import argparse
import json
import shutil
import string
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, Mistral4ForCausalLM, Qwen3Config,
                          RepetitionPenaltyLogitsProcessor)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

import dflash_reference

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
POSITIONS = 40  # of each target's prompt: two pages of 16 and a part of a third
CONTEXTS = (1, 9, 40)
ANSWER = 64  # tokens of the greedy answer
PENALTY = 1.5  # its repetition penalty
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
NULL = "null"  # a field that is null in the file; None leaves it out


def base_config(hidden, heads, kv_heads, head_dim, ffn, vocab, layers, tied, **more):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": ffn,
        "vocab_size": vocab, "num_hidden_layers": layers, "tie_word_embeddings": tied, "hidden_act": "silu",
        "attention_bias": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 10000.0,
        "eos_token_id": 1, "use_sliding_window": False, "sliding_window": None, **more,
    }


def family_config(architecture, model_type, sizes, **more):
    """Of another family than Qwen3; None leaves a field out."""
    return {**base_config(*sizes), "architectures": [architecture], "model_type": model_type,
            "use_sliding_window": None, **more}


def llama(*sizes, **more):
    return family_config("LlamaForCausalLM", "llama", sizes, **more)


def qwen2(*sizes, **more):
    return family_config("Qwen2ForCausalLM", "qwen2", sizes, attention_bias=None, **more)


def mistral(*sizes, **more):
    """Without a window in the file it is 4096 wide, as transformers has it."""
    return family_config("MistralForCausalLM", "mistral", sizes, attention_bias=None, **more)


def moe(*sizes, experts, chosen, inner, **more):
    return {**base_config(*sizes), "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": inner,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False,
            "router_aux_loss_coef": 0.001, **more}


def hybrid(architecture, model_type, *sizes, k_heads, v_heads, k_dim, v_dim, taps=4, **more):
    """Linear attention by the gated delta rule, and full attention in every few layers."""
    return family_config(architecture, model_type, sizes, linear_num_key_heads=k_heads, linear_num_value_heads=v_heads,
                         linear_key_head_dim=k_dim, linear_value_head_dim=v_dim, linear_conv_kernel_dim=taps, **more)


def qwen3_next(*sizes, experts, chosen, inner, shared, **more):
    return hybrid("Qwen3NextForCausalLM", "qwen3_next", *sizes, num_experts=experts, num_experts_per_tok=chosen,
                  moe_intermediate_size=inner, shared_expert_intermediate_size=shared, norm_topk_prob=True, **more)


def qwen3_5(*sizes, **more):
    return hybrid("Qwen3_5ForCausalLM", "qwen3_5_text", *sizes, attn_output_gate=True, mamba_ssm_dtype="float32", **more)


def qwen3_5_moe(*sizes, experts, chosen, inner, shared, **more):
    return hybrid("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", *sizes, num_experts=experts, num_experts_per_tok=chosen,
                  moe_intermediate_size=inner, shared_expert_intermediate_size=shared, **more)


def gpt_oss(*sizes, experts, chosen, window, **more):
    """The width of an expert is "intermediate_size"."""
    return family_config("GptOssForCausalLM", "gpt_oss", sizes, **{
        "attention_bias": True, "num_local_experts": experts, "num_experts_per_tok": chosen,
        "experts_per_token": chosen, "sliding_window": window, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.9,
        "output_router_logits": False, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "rope_scaling": {
            "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, **YARN}, **more})


def gemma3(*sizes, window, **more):
    """The activation has a field of its own, and the rotary embedding of layers with a window, too."""
    return family_config("Gemma3ForCausalLM", "gemma3_text", sizes, **{
        "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window, "rope_theta": None,
        "query_pre_attn_scalar": 24, **more})


def gemma4(*sizes, window, types, wide, wide_kv_heads=None, unified=False, **more):
    """types: a letter a layer, s or f. wide: the size of a head in full layers, whose V may be K's projection."""
    name = "gemma4_unified_text" if unified else "gemma4_text"
    return family_config("Gemma4UnifiedForCausalLM" if unified else "Gemma4ForCausalLM", name, sizes, **{
        "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window, "rope_theta": None,
        "layer_types": [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in types],
        "global_head_dim": wide, "num_global_key_value_heads": wide_kv_heads,
        "attention_k_eq_v": wide_kv_heads is not None, "hidden_size_per_layer_input": None if unified else 0,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": {
            "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}, **more})


def granite(*sizes, **more):
    return family_config("GraniteForCausalLM", "granite", sizes, **more)


def shared_experts(config, *, experts, chosen, inner, shared, dense, scaling, **more):
    """DeepSeek's words for experts, one of which every row goes through."""
    return {**config, "n_routed_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": inner,
            "n_shared_experts": shared, "first_k_dense_replace": dense, "routed_scaling_factor": scaling, **more}


def latent(architecture, model_type, hidden, heads, ffn, vocab, layers, *, q_rank, width, nope, rope, value, **more):
    """Latent attention: `width` elements for K and V of all heads, and `rope` rotated ones."""
    config = family_config(architecture, model_type, (hidden, heads, heads, None, ffn, vocab, layers, False))
    return shared_experts({**config, "q_lora_rank": q_rank or NULL, "kv_lora_rank": width, "qk_nope_head_dim": nope,
                           "qk_rope_head_dim": rope, "v_head_dim": value}, **more)


def deepseek_v2(*sizes, **more):
    return latent("DeepseekV2ForCausalLM", "deepseek_v2", *sizes, **{
        "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False, "n_group": 1, "topk_group": 1,
        "aux_loss_alpha": 0.001, "seq_aux": True, "moe_layer_freq": 1, "ep_size": 1, **more})


def deepseek_v3(*sizes, **more):
    return latent("DeepseekV3ForCausalLM", "deepseek_v3", *sizes, **{
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "num_nextn_predict_layers": 1,
        "moe_layer_freq": 1, **more})


def mistral4(*sizes, dense=0, **more):
    return latent("Mistral4ForCausalLM", "mistral4", *sizes, dense=dense, **{
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1, **more})


def glm4_moe_lite(*sizes, **more):
    return latent("Glm4MoeLiteForCausalLM", "glm4_moe_lite", *sizes, dense=1, **{
        "topk_method": "noaux_tc", "norm_topk_prob": True, "n_group": 1, "topk_group": 1, **more})


def glm4_moe(*sizes, **more):
    return shared_experts(family_config("Glm4MoeForCausalLM", "glm4_moe", sizes), **{
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1, **more})


def sparse_latent(architecture, model_type, *sizes, index, **more):
    """index: heads and width of the indexer, whose choice of keys covers the whole context here."""
    return latent(architecture, model_type, *sizes, **{
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "index_n_heads": index[0],
        "index_head_dim": index[1], "index_topk": 192, "rms_norm_eps": 1e-5, **more})


def minimax_m2(*sizes, experts, chosen, rotated, **more):
    """The width of an expert is "intermediate_size"."""
    return family_config("MiniMaxM2ForCausalLM", "minimax_m2", sizes, **{
        "attention_bias": None, "num_local_experts": experts, "num_experts_per_tok": chosen, "rotary_dim": rotated,
        "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
        "attn_type_list": [1] * sizes[6], "use_mtp": True, "num_mtp_modules": 3, **more})


def lfm2(hidden, heads, kv_heads, ffn, vocab, layers, tied, *, types, experts=None, chosen=None, inner=None, dense=None,
         **more):
    """types: a letter a layer, c or f."""
    mixed = {} if experts is None else {"num_experts": experts, "num_experts_per_tok": chosen, "num_dense_layers": dense,
                                        "moe_intermediate_size": inner, "norm_topk_prob": True, "use_expert_bias": True,
                                        "routed_scaling_factor": 1.0}
    name = "Lfm2ForCausalLM" if experts is None else "Lfm2MoeForCausalLM"
    return family_config(name, "lfm2" if experts is None else "lfm2_moe",
                         (hidden, heads, kv_heads, None, ffn, vocab, layers, tied), **{
        "hidden_act": None, "attention_bias": None, "rms_norm_eps": None, "norm_eps": 1e-5, "conv_L_cache": 3,
        "conv_bias": False, "layer_types": [{"c": "conv", "f": "full_attention"}[kind] for kind in types], **mixed, **more})


def dense_inner(config):
    """The width of the network that every row goes through."""
    inner = config.get("intermediate_size")
    if config["model_type"] != "lfm2" or not config.get("block_auto_adjust_ff_dim", True):
        return inner
    return -(-int(2 * inner / 3) // config["block_multiple_of"]) * config["block_multiple_of"]


# Families' own names for parts of tensors' names, in order.
NUMBERED = {".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}
LFM2_NAMES = {
    "input_layernorm.": "operator_norm.", "post_attention_layernorm.": "ffn_norm.", "self_attn.o_proj.": "self_attn.out_proj.",
    "self_attn.q_norm.": "self_attn.q_layernorm.", "self_attn.k_norm.": "self_attn.k_layernorm.",
    "mlp.gate.e_score_correction_bias": "mlp.expert_bias", "mlp.": "feed_forward.", **NUMBERED}
OWN_NAMES = {"minimax_m2": {"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias", "mlp.": "block_sparse_moe.",
                            **NUMBERED}, "lfm2": LFM2_NAMES, "lfm2_moe": LFM2_NAMES}


def own_name(name, model_type):
    for usual, own in OWN_NAMES.get(model_type, {}).items():
        name = name.replace(usual, own)
    return "embedding_norm.weight" if name == "norm.weight" and model_type.startswith("lfm2") else name


def is_latent(config):
    return "kv_lora_rank" in config


def is_hybrid(config):
    return "linear_num_key_heads" in config


# name: (config, dtype, shards). The seed is a name's place: add at the end.
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
    "llama_tied": (llama(60, 6, 2, 16, 72, 89, 2, True, rms_norm_eps=1e-5), "bf16", 1),
    "llama_llama3": (llama(64, 4, 2, None, 76, 96, 3, False, mlp_bias=False, pretraining_tp=1, rope_theta=500000.0,
                           eos_token_id=[1, 3, 5], rope_scaling={"rope_type": "llama3", **LLAMA3}), "bf16", 1),
    "llama_bias": (llama(40, 5, 5, 32, 52, 67, 2, False, attention_bias=True,
                         rope_scaling={"type": "linear", "factor": 2.0}), "fp32", 1),
    "qwen2_tied": (qwen2(48, 3, 1, None, 68, 91, 2, True), "bf16", 1),
    "qwen2_window": (qwen2(64, 4, 2, None, 60, 83, 3, False, use_sliding_window=True, sliding_window=11,
                           max_window_layers=1), "bf16", 2),
    "qwen2_yarn": (qwen2(72, 6, 3, 48, 60, 64, 2, False, rope_scaling={"type": "yarn", **YARN}), "fp16", 1),
    "qwen3_window": (base_config(40, 4, 1, 16, 52, 71, 3, True, attention_bias=True, use_sliding_window=True,
                                 sliding_window=9, layer_types=["sliding_attention", "full_attention",
                                                                "sliding_attention"]), "fp32", 1),
    "moe_single": (moe(40, 4, 2, 16, 24, 73, 2, False, experts=6, chosen=2, inner=20), "bf16", 2),
    "moe_stacked": (moe(48, 3, 1, 32, 24, 61, 2, True, experts=5, chosen=3, inner=28), "fp32", 1),
    "moe_mixed": (moe(64, 4, 4, 16, 52, 80, 4, False, experts=9, chosen=4, inner=12, decoder_sparse_step=2,
                      mlp_only_layers=[3], norm_topk_prob=False, use_sliding_window=True, sliding_window=13), "bf16", 1),
    "mistral_window": (mistral(48, 6, 2, 16, 68, 87, 3, False, sliding_window=9), "bf16", 1),
    "mistral_wide": (mistral(40, 5, 1, 48, 52, 66, 2, False, rope_theta=1000000.0), "fp32", 2),
    "mistral_tied": (mistral(60, 3, 3, None, 44, 93, 2, True, sliding_window=23, head_dim=32), "fp16", 1),
    "next_experts": (qwen3_next(48, 4, 2, 32, 40, 83, 4, False, k_heads=2, v_heads=4, k_dim=16, v_dim=32, experts=6,
                                chosen=2, inner=20, shared=24, partial_rotary_factor=0.25, full_attention_interval=2,
                                decoder_sparse_step=1, mlp_only_layers=[]), "bf16", 2),
    "next_mixed": (qwen3_next(40, 4, 1, 16, 52, 72, 3, True, k_heads=1, v_heads=3, k_dim=32, v_dim=16, taps=3,
                              experts=5, chosen=3, inner=16, shared=12, partial_rotary_factor=0.5,
                              full_attention_interval=3, mlp_only_layers=[1]), "fp32", 1),
    "hybrid_tied": (qwen3_5(64, 4, 2, 16, 72, 90, 4, True, k_heads=2, v_heads=2, k_dim=16, v_dim=16,
                            full_attention_interval=4, partial_rotary_factor=0.25), "bf16", 1),
    "hybrid_wide": (qwen3_5(48, 3, 3, 32, 60, 77, 3, False, k_heads=2, v_heads=6, k_dim=16, v_dim=16,
                            layer_types=["linear_attention", "full_attention", "linear_attention"], rope_theta=None,
                            rope_parameters={"rope_type": "default", "rope_theta": 50000.0,
                                             "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                                             "mrope_section": [2, 1, 1]}), "fp32", 1),
    "hybrid_nested": (qwen3_5(56, 4, 1, 48, 64, 85, 2, False, k_heads=1, v_heads=2, k_dim=48, v_dim=80,
                              full_attention_interval=2, partial_rotary_factor=0.25), "fp16", 2),
    "hybrid_experts": (qwen3_5_moe(40, 2, 2, 64, None, 79, 4, False, k_heads=2, v_heads=4, k_dim=32, v_dim=16,
                                   experts=7, chosen=2, inner=24, shared=16, full_attention_interval=2,
                                   partial_rotary_factor=0.25), "bf16", 1),
    "oss_alternating": (gpt_oss(72, 8, 1, 64, 40, 89, 4, False, experts=8, chosen=4, window=13), "bf16", 2),
    "oss_many_experts": (gpt_oss(32, 8, 1, 16, 32, 93, 2, False, experts=128, chosen=4, window=8), "bf16", 1),
    "oss_odd": (gpt_oss(44, 6, 3, 48, 28, 71, 3, True, experts=5, chosen=3, window=9, attention_bias=False, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention"]), "fp32", 1),
    "gemma_windows": (gemma3(72, 4, 1, 32, 100, 103, 4, True, window=9, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 60000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}, layer_types=[
            "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]), "bf16", 1),
    "gemma_nested": (gemma3(44, 2, 2, 16, 60, 87, 3, True, window=13, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"], rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}, final_logit_softcapping=4.0), "fp32", 2),
    "granite_factors": (granite(64, 4, 2, 16, 84, 95, 3, False, embedding_multiplier=1.5, attention_multiplier=0.1,
                                residual_multiplier=0.7, logits_scaling=0.5, mlp_bias=False), "bf16", 1),
    "latent_softmax": (deepseek_v2(60, 3, 44, 91, 3, q_rank=0, width=48, nope=24, rope=16, value=20, experts=7, chosen=3,
                                   inner=16, shared=2, dense=1, scaling=1.0, rope_scaling={
                                       "type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32,
                                       "beta_slow": 1, **YARN}), "bf16", 1),
    "latent_ranked": (deepseek_v2(40, 2, 36, 77, 2, q_rank=28, width=32, nope=16, rope=32, value=24, experts=5, chosen=2,
                                  inner=20, shared=1, dense=0, scaling=1.7), "fp32", 2),
    "latent_groups": (deepseek_v3(64, 4, 52, 94, 2, q_rank=40, width=64, nope=16, rope=16, value=16, experts=8, chosen=3,
                                  inner=16, shared=1, dense=1, scaling=2.5, n_group=4, topk_group=2, rope_scaling={
                                      "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                                      "beta_slow": 1, **YARN}), "bf16", 2),
    "latent_one_group": (deepseek_v3(60, 5, 40, 83, 3, q_rank=0, width=32, nope=20, rope=16, value=28, experts=6,
                                     chosen=2, inner=24, shared=2, dense=2, scaling=2.446, n_group=1, topk_group=1,
                                     rms_norm_eps=1e-5, rope_theta=50000.0, num_nextn_predict_layers=0), "fp32", 1),
    "glm_norms": (glm4_moe(60, 6, 2, 32, 60, 93, 3, False, experts=8, chosen=3, inner=20, shared=1, dense=1, scaling=2.5,
                           attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
                           rope_theta=1000000.0), "bf16", 1),
    "glm_plain": (glm4_moe(40, 4, 1, 16, 52, 79, 3, False, experts=6, chosen=2, inner=24, shared=1, dense=2, scaling=1.0,
                           attention_bias=False, use_qk_norm=False, rms_norm_eps=1e-5), "fp32", 2),
    "latent_glm": (glm4_moe_lite(72, 4, 60, 97, 3, q_rank=36, width=48, nope=24, rope=16, value=32, experts=8, chosen=3,
                                 inner=16, shared=1, scaling=1.8, rms_norm_eps=1e-5, rope_theta=1000000.0), "bf16", 1),
    "latent_glm_types": (glm4_moe_lite(48, 3, 44, 85, 3, q_rank=24, width=32, nope=12, rope=32, value=20, experts=5,
                                       chosen=2, inner=20, shared=1, scaling=1.0, rms_norm_eps=1e-5,
                                       first_k_dense_replace=None, mlp_layer_types=["dense", "sparse", "sparse"],
                                       rope_interleave=False), "fp32", 1),
    "gemma4_same_kv": (gemma4(72, 4, 2, 32, 100, 103, 4, True, window=9, types="ssff", wide=64, wide_kv_heads=1,
                              final_logit_softcapping=4.0), "bf16", 1),
    "gemma4_experts": (gemma4(44, 4, 4, 16, 36, 87, 3, True, window=13, types="sff", wide=48, wide_kv_heads=2,
                              enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=20,
                              use_bidirectional_attention="vision"), "fp32", 2),
    "gemma4_unified": (gemma4(40, 2, 1, 16, 60, 91, 3, False, window=11, types="sff", wide=512, unified=True), "bf16", 1),
    "latent_grown": (mistral4(56, 4, 48, 86, 2, q_rank=28, width=32, nope=16, rope=16, value=24, experts=6, chosen=2,
                              inner=20, shared=1, scaling=1.0, rope_theta=None, rope_parameters={
                                  "rope_type": "yarn", "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                  "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1,
                                  "partial_rotary_factor": 0.5, **YARN}), "bf16", 1),
    "minimax_ranks": (minimax_m2(64, 8, 4, 32, 24, 97, 3, False, experts=8, chosen=3, rotated=16,
                                 rope_theta=5000000.0), "bf16", 2),
    "minimax_odd": (minimax_m2(40, 3, 1, 48, 20, 79, 2, False, experts=5, chosen=2, rotated=16), "fp32", 1),
    "minimax_whole": (minimax_m2(72, 4, 4, 16, 28, 103, 3, True, experts=7, chosen=4, rotated=None, rms_norm_eps=1e-5),
                      "bf16", 1),
    "lfm2_tied": (lfm2(64, 4, 2, 96, 93, 4, True, types="ccfc", block_multiple_of=16, rope_theta=1000000.0), "bf16", 1),
    "lfm2_odd": (lfm2(48, 3, 1, 44, 71, 3, False, types="cff", conv_L_cache=4, block_auto_adjust_ff_dim=False), "fp32", 2),
    "lfm2_experts": (lfm2(64, 4, 2, 60, 89, 3, True, types="cfc", experts=8, chosen=3, inner=20, dense=1,
                          rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}), "bf16", 1),
    "sparse_glm": (sparse_latent("GlmMoeDsaForCausalLM", "glm_moe_dsa", 64, 4, 52, 94, 3, index=(2, 32), q_rank=40,
                                 width=64, nope=16, rope=16, value=16, experts=8, chosen=3, inner=16, shared=1, dense=1,
                                 scaling=2.5, n_group=1, topk_group=1, rope_theta=8000000.0), "bf16", 2),
    "sparse_glm_shared": (sparse_latent("GlmMoeDsaForCausalLM", "glm_moe_dsa", 48, 3, 44, 85, 4, index=(3, 48), q_rank=24,
                                        width=32, nope=12, rope=32, value=20, experts=5, chosen=2, inner=20, shared=1,
                                        dense=2, scaling=1.0, n_group=1, topk_group=1, index_topk_pattern="FSFS"),
                          "fp32", 1),
    "sparse_deepseek": (sparse_latent("DeepseekV32ForCausalLM", "deepseek_v32", 60, 5, 40, 83, 3, index=(4, 32), q_rank=28,
                                      width=32, nope=20, rope=16, value=28, experts=8, chosen=2, inner=24, shared=1,
                                      dense=1, scaling=2.5, n_group=4, topk_group=2, rope_scaling={
                                          "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                                          "beta_slow": 1, **YARN}), "bf16", 1),
}
STACKED = ("moe_stacked", "hybrid_experts", "latent_grown")  # all experts of a layer as one tensor
# Where the one of its place gives an answer with a choice that is too close to compare, or one token for ever.
SEEDS = {"next_experts": 1120, "gemma_windows": 1223, "gemma_nested": 1127, "gemma4_same_kv": 1301, "gemma4_experts": 1302,
         "gemma4_unified": 1303}
NESTED = ("hybrid_nested", "hybrid_experts", "gemma_nested", "gemma4_experts", "gemma4_unified")  # as the text of a checkpoint that also holds vision
WITHOUT_ANSWER = 7  # the first of them


def drafter_config(target, heads, kv_heads, head_dim, ffn, layers, dflash, **more):
    t = TARGETS[target][0]
    config = base_config(t["hidden_size"], heads, kv_heads, head_dim, ffn, t["vocab_size"], layers, False)
    return {**config, "architectures": ["DFlashDraftModel"], "num_target_layers": t["num_hidden_layers"],
            "dflash_config": dflash, **more}


def in_speculators_format(config):
    """The same as the speculators library writes it: its layer ids count from the embedding."""
    own = config["dflash_config"]
    elsewhere = ("architectures", "dflash_config", "num_target_layers", "draft_vocab_size")
    decoder = {k: v for k, v in config.items() if k not in elsewhere}
    return {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash",
            "speculators_config": {"algorithm": "dflash", "verifier": {"architectures": []}},
            "aux_hidden_state_layer_ids": [i + 1 for i in own["target_layer_ids"]], "block_size": own["block_size"],
            "mask_token_id": own["mask_token_id"], "draft_vocab_size": config.get("draft_vocab_size", config["vocab_size"]),
            "sliding_window_non_causal": False, "max_anchors": 512, "transformer_layer_config": decoder}


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
    "speculators": ("llama_llama3", drafter_config(
        "llama_llama3", 2, 1, 32, 56, 2, {"mask_token_id": 95, "target_layer_ids": [0, 2], "block_size": 8},
        rope_theta=None, rope_parameters={"rope_type": "yarn", "rope_theta": 20000.0, **YARN}), "bf16", ""),
    "aliases_bias": ("qwen2_window", drafter_config(
        "qwen2_window", 4, 2, 16, 44, 1, {"mask_token_id": 82, "use_swa": True, "swa_window_size": 7}, block_size=8,
        attention_bias=True), "bf16", ""),
    "of_experts": ("moe_mixed", drafter_config(
        "moe_mixed", 2, 2, 32, 40, 1, {"mask_token_id": 79, "target_layer_ids": [1, 3], "num_target_layers": 4},
        num_target_layers=None, block_size=8, use_sliding_window=True, sliding_window=12, max_window_layers=0),
        "bf16", ""),
    "reduced_vocabulary": ("moe_single", drafter_config(
        "moe_single", 2, 1, 16, 36, 1, {"mask_token_id": 72, "target_layer_ids": [0, 1], "block_size": 8},
        draft_vocab_size=28), "bf16", ""),
    "softcapped": ("qwen3_window", drafter_config(
        "qwen3_window", 2, 2, 16, 44, 1, {"mask_token_id": 70, "target_layer_ids": [1]}, block_size=8,
        final_logit_softcapping=1.5), "fp32", ""),
    "bias_untruncated": ("oss_alternating", drafter_config(
        "oss_alternating", 8, 1, 64, 60, 2, {"mask_token_id": 88, "target_layer_ids": [0, 1, 3]}, block_size=8,
        attention_bias=True, rms_norm_eps=1e-5, rope_theta=150000.0,
        rope_scaling=TARGETS["oss_alternating"][0]["rope_scaling"]), "bf16", ""),
}
IN_SPECULATORS_FORMAT = ("speculators", "reduced_vocabulary")

# Other names that files have for the same tensors.
RENAMED = {"aliases_bias": {"layers.0.": "midlayer.", "fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}}

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
    "proportional": (512, 8192, {"rope_parameters": {
        "rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}}),
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

    def above_one(n):
        return norm(n) - 1 if is_hybrid(config) or gemma else norm(n)

    def heads(layer):
        """The size of a head, the numbers of rows of q and of k."""
        if not gemma4 or config["layer_types"][layer] != "full_attention":
            return d, q, kv
        wide, kv_heads = config["global_head_dim"], config.get("num_global_key_value_heads") or config["num_key_value_heads"]
        return wide, config["num_attention_heads"] * wide, kv_heads * wide

    def head_norms(layer):
        if gemma4:  # scores have no factor, so that a norm holds it
            own = heads(layer)[0]
            return {"self_attn.q_norm": norm(own) * own**-0.5, "self_attn.k_norm": norm(own)}
        if is_hybrid(config) or gemma:
            return {"self_attn.q_norm": above_one(d), "self_attn.k_norm": above_one(d)}
        if model_type == "minimax_m2":
            return {"self_attn.q_norm": norm(q), "self_attn.k_norm": norm(kv)}
        normed = model_type.startswith(("qwen3", "lfm2")) or config.get("use_qk_norm")
        return {"self_attn.q_norm": norm(d), "self_attn.k_norm": norm(d)} if normed else {}

    def interleaved_experts(layer):
        """Gates beyond what they are clamped at, and sinks that outweigh a window, are not rare."""
        experts = config["num_local_experts"]
        return {f"layers.{layer}.{name}": scale * torch.randn(*shape, generator=generator) for name, scale, shape in (
            ("self_attn.sinks", 2, (config["num_attention_heads"],)),
            ("mlp.router.weight", 3 * hidden**-0.5, (experts, hidden)), ("mlp.router.bias", 1, (experts,)),
            ("mlp.experts.gate_up_proj", hidden**-0.5, (experts, hidden, 2 * ffn)),
            ("mlp.experts.gate_up_proj_bias", 3, (experts, 2 * ffn)),
            ("mlp.experts.down_proj", 0.2 * ffn**-0.5, (experts, ffn, hidden)),
            ("mlp.experts.down_proj_bias", 0.5, (experts, hidden)))}

    def experts_beside(layer):
        """A factor on each layer's output, and experts that have norms of their own."""
        tensors = {"layer_scalar": 0.7 + 0.6 * torch.rand(1, generator=generator)}
        if "num_experts" in config:
            experts, inner = config["num_experts"], config["moe_intermediate_size"]
            tensors |= {"router.proj.weight": 3 * matrix(experts, hidden), "router.scale": norm(hidden) * hidden**0.5,
                        "router.per_expert_scale": norm(experts),
                        "experts.gate_up_proj": torch.stack([matrix(2 * inner, hidden) for _ in range(experts)]),
                        "experts.down_proj": torch.stack([matrix(hidden, inner) for _ in range(experts)]),
                        **{f"{name}.weight": norm(hidden) for name in (
                            "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")}}
        return {f"layers.{layer}.{name}": value for name, value in tensors.items()}

    def shared_network(layer):
        """Scores of experts are far enough apart to be compared."""
        if layer < config.get("first_k_dense_replace", 1):
            return {"mlp.gate_proj": matrix(ffn, hidden), "mlp.up_proj": matrix(ffn, hidden),
                    "mlp.down_proj": matrix(hidden, ffn)}
        inner, count = config["moe_intermediate_size"], config["n_routed_experts"]
        names = {f"mlp.experts.{e}": inner for e in range(count)}
        names["mlp.shared_experts"] = inner * config["n_shared_experts"]
        return {"mlp.gate": 3 * matrix(count, hidden), **{
            f"{name}.{part}": matrix(*shape) for name, width in names.items() for part, shape in {
                "gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}.items()}}

    def latent_attention(layer):
        heads, rank, width = config["num_attention_heads"], config["q_lora_rank"], config["kv_lora_rank"]
        nope, rope, value = (config[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v"))
        query = {"q_proj": matrix(heads * (nope + rope), hidden)} if rank is None else {
            "q_a_proj": matrix(rank, hidden), "q_a_layernorm": norm(rank), "q_b_proj": matrix(heads * (nope + rope), rank)}
        return {f"layers.{layer}.self_attn.{name}.weight": value for name, value in {
            **query, "kv_a_proj_with_mqa": matrix(width + rope, hidden), "kv_a_layernorm": norm(width),
            "kv_b_proj": matrix(heads * (nope + value), width), "o_proj": matrix(hidden, heads * value)}.items()}

    def choice_of_keys(layer):
        """An indexer, where the layer has its own."""
        if "index_topk" not in config or config.get("index_topk_pattern", "F" * (layer + 1))[layer] == "S":
            return {}
        heads, width = config["index_n_heads"], config["index_head_dim"]
        return {f"layers.{layer}.self_attn.indexer.{name}": value for name, value in {
            "wq_b.weight": matrix(heads * width, config["q_lora_rank"]), "wk.weight": matrix(width, hidden),
            "k_norm.weight": norm(width), "k_norm.bias": 0.3 * norm(width), "weights_proj.weight": matrix(heads, hidden)}.items()}

    def convolution(layer):
        taps = config["conv_L_cache"]
        return {f"layers.{layer}.conv.{name}.weight": value for name, value in {
            "in_proj": matrix(3 * hidden, hidden), "out_proj": matrix(hidden, hidden),
            "conv": torch.randn(hidden, 1, taps, generator=generator) * taps**-0.5}.items()}

    def is_conv(layer):
        return config.get("layer_types", [""] * (layer + 1))[layer] == "conv"

    def numbered_experts(layer):
        if layer < config.get("num_dense_layers", 0):
            return {"mlp.gate_proj": matrix(ffn, hidden), "mlp.up_proj": matrix(ffn, hidden),
                    "mlp.down_proj": matrix(hidden, ffn)}
        inner = config.get("moe_intermediate_size", ffn)
        count = config.get("num_experts") or config["num_local_experts"]
        return {"mlp.gate": 3 * matrix(count, hidden), **{
            f"mlp.experts.{e}.{part}": matrix(*shape) for e in range(count) for part, shape in {
                "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}.items()}}

    def network(layer):
        if "n_routed_experts" in config:
            return shared_network(layer)
        if model_type in ("minimax_m2", "lfm2_moe"):
            return numbered_experts(layer)
        chosen = layer not in config.get("mlp_only_layers", []) and (layer + 1) % config.get("decoder_sparse_step", 1) == 0
        if "num_experts" not in config or gemma4 or not chosen:
            return {"mlp.gate_proj": matrix(ffn, hidden), "mlp.up_proj": matrix(ffn, hidden),
                    "mlp.down_proj": matrix(hidden, ffn)}
        inner = config["moe_intermediate_size"]
        experts = {f"mlp.experts.{e}.{part}": matrix(*shape) for e in range(config["num_experts"]) for part, shape in {
            "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}.items()}
        shared = config.get("shared_expert_intermediate_size", 0)
        if shared:
            experts |= {"mlp.shared_expert.gate_proj": matrix(shared, hidden), "mlp.shared_expert.up_proj": matrix(
                shared, hidden), "mlp.shared_expert.down_proj": matrix(hidden, shared),
                "mlp.shared_expert_gate": 3 * matrix(1, hidden)}
        return {"mlp.gate": 3 * matrix(config["num_experts"], hidden), **experts}

    def is_linear(layer):
        if not is_hybrid(config):
            return False
        if "layer_types" in config:
            return config["layer_types"][layer] == "linear_attention"
        return (layer + 1) % config["full_attention_interval"] != 0

    def linear_attention(layer):
        heads, taps = config["linear_num_value_heads"], config["linear_conv_kernel_dim"]
        keys, values = (config[f"linear_num_{x}_heads"] * config[f"linear_{x}_head_dim"] for x in ("key", "value"))
        inputs = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads} if model_type == "qwen3_next" else {
            "qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
        parts = {f"in_proj_{name}.weight": matrix(rows, hidden) for name, rows in inputs.items()}
        return {f"layers.{layer}.linear_attn.{name}": value for name, value in {
            **parts, "conv1d.weight": torch.randn(2 * keys + values, 1, taps, generator=generator) * taps**-0.5,
            "A_log": torch.randn(heads, generator=generator) - 1, "dt_bias": torch.randn(heads, generator=generator),
            "norm.weight": norm(config["linear_value_head_dim"]), "out_proj.weight": matrix(hidden, values)}.items()}

    def attention(layer):
        d, q, kv = heads(layer)
        shapes = {"q": (2 * q if is_hybrid(config) else q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
        if config.get("attention_k_eq_v") and config["layer_types"][layer] == "full_attention":
            del shapes["v"]
        return {f"layers.{layer}.self_attn.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}

    hidden, ffn, model_type = config["hidden_size"], dense_inner(config), config["model_type"]
    gemma, gemma4 = model_type == "gemma3_text", model_type.startswith("gemma4")
    d = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    tensors = {"norm.weight": above_one(hidden)}
    for i in range(config["num_hidden_layers"]):
        tensors |= {f"layers.{i}.{name}.weight": value for name, value in {
            "input_layernorm": above_one(hidden), "post_attention_layernorm": above_one(hidden)}.items()}
        if gemma or gemma4:
            tensors |= {f"layers.{i}.{name}_feedforward_layernorm.weight": above_one(hidden) for name in ("pre", "post")}
        tensors |= convolution(i) if is_conv(i) else linear_attention(i) if is_linear(i) else latent_attention(i) if is_latent(
            config) else attention(i)
        tensors |= choice_of_keys(i)
        tensors |= {f"layers.{i}.{name}.weight": value for name, value in {
            **({} if is_linear(i) or is_conv(i) else head_norms(i)), **({} if model_type == "gpt_oss" else network(i))}.items()}
        if model_type == "gpt_oss":
            tensors |= interleaved_experts(i)
        if gemma4:
            tensors |= experts_beside(i)
        router = tensors.get(f"layers.{i}.mlp.gate.weight")
        if router is not None and (model_type in ("minimax_m2", "lfm2_moe") or (
                "n_routed_experts" in config and model_type not in ("deepseek_v2", "mistral4"))):
            tensors[f"layers.{i}.mlp.gate.e_score_correction_bias"] = 0.3 * torch.randn(len(router), generator=generator)
        if model_type == "qwen2" or config.get("attention_bias"):
            tensors |= {f"layers.{i}.self_attn.{name}_proj.bias": 0.5 * torch.randn(n, generator=generator)
                        for name, n in (("q", q), ("k", kv), ("v", kv))}
        if config.get("attention_bias") and model_type != "glm4_moe":
            biases = torch.Generator().manual_seed(3000 + i)
            tensors[f"layers.{i}.self_attn.o_proj.bias"] = 0.1 * torch.randn(hidden, generator=biases)
    return tensors


def stack_experts(tensors, layers, experts):
    """gate_up_proj [experts, gate rows then up rows, hidden] and down_proj [experts, hidden, inner] of each layer."""
    for i in range(layers):
        def take(e, part):
            return tensors.pop(f"layers.{i}.mlp.experts.{e}.{part}.weight")
        both = [torch.cat((take(e, "gate_proj"), take(e, "up_proj"))) for e in range(experts)]
        tensors[f"layers.{i}.mlp.experts.gate_up_proj"] = torch.stack(both)
        tensors[f"layers.{i}.mlp.experts.down_proj"] = torch.stack([take(e, "down_proj") for e in range(experts)])
    return tensors


CHUNKED = {module: module.torch_chunk_gated_delta_rule
           for module in (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe)}


def choose_delta_rule(chunked):
    """transformers computes a prompt in chunks, and what follows token by token: not the same bits. The reference is
    token by token throughout."""
    for module, function in CHUNKED.items():
        module.torch_chunk_gated_delta_rule = function if chunked else module.torch_recurrent_gated_delta_rule


def load(folder: Path, dtype=torch.float32):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    model = Mistral4ForCausalLM if kind == "mistral4" else AutoModelForCausalLM  # which does not know it
    return model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                 experts_implementation="eager").to(dtype).eval()


@torch.no_grad()
def greedy_answer(folder: Path, ids):
    """ANSWER tokens that follow, computed anew for each, end tokens ignored. The penalty keeps random models from
    repeating one token for ever."""
    model, ids, length = load(folder), list(ids), len(ids)
    penalise = RepetitionPenaltyLogitsProcessor(PENALTY)
    while len(ids) < length + ANSWER:
        so_far = torch.tensor([ids])
        best = penalise(so_far, model(so_far, use_cache=False).logits[:, -1])[0].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, f"{folder.name}: the choice is too close to compare"
        ids.append(int(best.indices[0]))
    assert len(set(ids[length:])) > 8, f"{folder.name}: {ids[length:]} is too monotonous to show anything"
    return ids[length:]


@torch.no_grad()
def run_target(folder: Path, ids):
    """Logits and layer outputs of transformers: float32, eager attention; float64 for latent attention, where float32
    itself errs by 9e-7. The last layer's output is taken before the final norm, which transformers' own list of hidden
    states has already applied."""
    config = json.loads((folder / "config.json").read_text())
    model = load(folder, torch.float64 if is_latent(config) else torch.float32)
    outputs = []
    hooks = [layer.register_forward_hook(lambda module, args, out: outputs.append(out)) for layer in model.model.layers]
    logits = model(torch.tensor([ids])).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits, torch.stack([(o[0] if isinstance(o, tuple) else o).reshape(len(ids), -1) for o in outputs]).float()


@torch.no_grad()
def chosen_experts(folder: Path, ids):
    """Of each layer with experts those of each row, highest score first, one row after the other."""
    model, chosen = load(folder), {}

    def keep(layer):
        def sort(module, args, out):
            """Some routers leave the order open, in which experts were chosen."""
            logits, _, experts = out
            bias = getattr(module, "e_score_correction_bias", args[1] if len(args) > 1 else None)
            scores = logits if bias is None else logits.float().sigmoid() + bias
            order = scores.gather(1, experts).argsort(dim=-1, descending=True, stable=True)
            chosen[f"experts.{layer}"] = experts.gather(1, order).float().flatten()
        return sort
    for i, layer in enumerate(model.model.layers):
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.feed_forward
        router = getattr(mlp, "gate", getattr(mlp, "router", getattr(layer, "router", None)))
        if router is not None:
            router.register_forward_hook(keep(i))
    model(torch.tensor([ids]))
    return chosen


def nest(folder: Path, generator):
    """Rewrites a text model's folder as that of a model with vision, whose text it is."""
    config = json.loads((folder / "config.json").read_text())
    gemma = config["model_type"].startswith("gemma")
    outer = {"architectures": [config.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")],
             "model_type": config["model_type"].removesuffix("_text"), "text_config": config,
             "vision_config": {"depth": 2, "hidden_size": 16, "out_hidden_size": config["hidden_size"]},
             **({"image_token_index": 6, "mm_tokens_per_image": 4} if gemma else {
                 "image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}),
             "tie_word_embeddings": config["tie_word_embeddings"], "torch_dtype": config.pop("torch_dtype")}
    write_json(folder / "config.json", outer)
    tensors = {}
    shards = sorted(folder.glob("*.safetensors"))
    for path in shards:
        tensors |= load_file(path)
        path.unlink()
    dtype = tensors["model.norm.weight"].dtype
    tensors = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    for extra in ("vision_tower.post_layernorm.bias", "multi_modal_projector.mm_soft_emb_norm.weight") if gemma else (
            "model.visual.merger.norm.weight", "model.visual.patch_embed.proj.bias", "mtp.norm.weight"):
        tensors[extra] = torch.randn(16, generator=generator).to(dtype)
    write_tensors(folder, tensors, len(shards))


def make_target(index, name):
    config, dtype, shards = TARGETS[name]
    config = {key: None if value == NULL else value for key, value in config.items() if value is not None}
    generator = torch.Generator().manual_seed(SEEDS.get(name, 1000 + index))
    folder = DATA / "targets" / name
    tensors = random_layers(config, generator)
    if name in STACKED:
        tensors = stack_experts(tensors, config["num_hidden_layers"],
                                config.get("num_experts") or config["n_routed_experts"])
    tensors = {f"model.{own_name(n, config['model_type'])}": t for n, t in tensors.items()}
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    # A tied head repeats the last token for ever where embeddings outweigh what the layers add.
    scale = 0.1 if config["tie_word_embeddings"] and index >= WITHOUT_ANSWER else 0.5
    tensors["model.embed_tokens.weight"] = scale * torch.randn(vocab, hidden, generator=generator)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(vocab, hidden, generator=generator) * hidden**-0.5
    if config.get("num_nextn_predict_layers"):  # a layer that predicts further tokens
        tensors[f"model.layers.{config['num_hidden_layers']}.enorm.weight"] = torch.ones(hidden)
    write_tensors(folder, {n: t.to(DTYPES[dtype]) for n, t in tensors.items()}, shards)
    write_json(folder / "config.json", {**config, "torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")})
    ids = torch.randint(vocab, (POSITIONS,), generator=generator).tolist()
    expected = {"prompt_ids": torch.tensor(ids).float()}
    if is_hybrid(config):
        choose_delta_rule(chunked=True)
        expected["chunked_logits"] = run_target(folder, ids)[0]
    choose_delta_rule(chunked=False)
    expected["logits"], expected["layers"] = run_target(folder, ids)
    expected |= chosen_experts(folder, ids)
    if index >= WITHOUT_ANSWER:
        expected["greedy_ids"] = torch.tensor(greedy_answer(folder, ids)).float()
    if name in NESTED:
        nest(folder, generator)
    write_tensors(folder / "expected", expected)


VISION = {"depth": 3, "hidden_size": 48, "intermediate_size": 56, "num_heads": 2, "in_channels": 3, "patch_size": 4,
          "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 25,
          "hidden_act": "gelu_pytorch_tanh"}
SEEN_TOKENS = {"image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}
AXES = {"rope_theta": None, "use_sliding_window": None, "rope_parameters": {
    "rope_type": "default", "rope_theta": 50000.0, "mrope_interleaved": True, "mrope_section": [6, 5, 5]}}
PART_AXES = {**AXES, "rope_parameters": {
    **AXES["rope_parameters"], "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]}}
# Architecture, text and what DeepStack takes of each tiny model that sees.
SEEN = {
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", base_config(
        48, 4, 2, 32, 64, 90, 4, False, **{**AXES, "model_type": "qwen3_vl_text"}), [0, 1]),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", moe(
        40, 4, 2, 32, 56, 88, 3, False, experts=6, chosen=2, inner=24, **{**AXES, "model_type": "qwen3_vl_moe_text"}),
        [1]),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", qwen3_5(
        48, 3, 3, 32, 60, 77, 4, False, k_heads=2, v_heads=4, k_dim=16, v_dim=16,
        full_attention_interval=2, **PART_AXES), []),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", qwen3_5_moe(
        40, 2, 2, 32, None, 79, 4, True, k_heads=2, v_heads=4, k_dim=16, v_dim=16, experts=6, chosen=2, inner=24,
        shared=24, full_attention_interval=2, **PART_AXES), []),
}
# Prompts: numbers of text tokens, and pictures' rows and columns of tokens. The last two are turns of one talk.
TALKS = (((2, 3), 9), (7, (3, 1), 4, (1, 4), 2), (1, (2, 2), 3, (1, 1), 1, (3, 4), (4, 1), 2), (12, (5, 2)),
         (12, (5, 2), 5, (2, 4), 3))


def random_tower(vision, generator):
    hidden, inner, out = (vision[f"{name}_size"] for name in ("hidden", "intermediate", "out_hidden"))
    joined = hidden * vision["spatial_merge_size"] ** 2

    def product(name, rows, columns, shape=()):
        return {f"{name}.weight": (torch.randn(rows, columns, generator=generator) * columns**-0.5).reshape(
            rows, *(shape or (columns,))), f"{name}.bias": 0.3 * torch.randn(rows, generator=generator)}

    def norm(name, n):
        return {f"{name}.weight": 1 + 0.3 * torch.randn(n, generator=generator),
                f"{name}.bias": 0.3 * torch.randn(n, generator=generator)}

    size = vision["patch_size"]
    shape = (3, vision["temporal_patch_size"], size, size)
    tensors = product("patch_embed.proj", hidden, 3 * vision["temporal_patch_size"] * size**2, shape)
    tensors["pos_embed.weight"] = torch.randn(vision["num_position_embeddings"], hidden, generator=generator)
    for i in range(vision["depth"]):
        block = f"blocks.{i}."
        tensors |= norm(block + "norm1", hidden) | norm(block + "norm2", hidden)
        tensors |= product(block + "attn.qkv", 3 * hidden, hidden) | product(block + "attn.proj", hidden, hidden)
        tensors |= product(block + "mlp.linear_fc1", inner, hidden) | product(block + "mlp.linear_fc2", hidden, inner)
    mergers = {"merger.": hidden} | {
        f"deepstack_merger_list.{i}.": joined for i in range(len(vision["deepstack_visual_indexes"]))}
    for name, normed in mergers.items():
        tensors |= norm(name + "norm", normed) | product(name + "linear_fc1", joined, joined)
        tensors |= product(name + "linear_fc2", out, joined)
    return tensors


def patches_of(rgb, vision):
    """[patches, values] of a picture [height, width, 3], and its grid, as transformers' processors order them."""
    size, merge, frames = (vision[key] for key in ("patch_size", "spatial_merge_size", "temporal_patch_size"))
    rows, columns = rgb.shape[0] // size, rgb.shape[1] // size
    values = ((rgb.float() - 127.5) / 127.5).permute(2, 0, 1).expand(frames, 3, *rgb.shape[:2])
    values = values.reshape(1, frames, 3, rows // merge, merge, size, columns // merge, merge, size)
    values = values.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return values.reshape(rows * columns, -1), (1, rows, columns)


class Talk:
    """Token ids and pictures, and what the model makes of them."""

    def __init__(self, model, vision, parts, seed):
        generator = torch.Generator().manual_seed(seed)
        self.model, self.ids, self.pictures, pixels, grids = model, [], [], [], []
        side = vision["patch_size"] * vision["spatial_merge_size"]
        for part in parts:
            if isinstance(part, int):
                self.ids += torch.randint(11, model.config.text_config.vocab_size, (part,), generator=generator).tolist()
                continue
            rgb = torch.randint(256, (part[0] * side, part[1] * side, 3), generator=generator, dtype=torch.uint8)
            self.ids.append(SEEN_TOKENS["vision_start_token_id"])
            self.pictures.append((len(self.ids), rgb))
            self.ids += [SEEN_TOKENS["image_token_id"]] * (part[0] * part[1]) + [SEEN_TOKENS["vision_end_token_id"]]
            values, grid = patches_of(rgb, vision)
            pixels.append(values)
            grids.append(grid)
        self.pixels, self.grids = torch.cat(pixels), torch.tensor(grids)

    def logits(self, ids):
        kinds = torch.tensor([[int(i == SEEN_TOKENS["image_token_id"]) for i in ids]])
        return self.model(input_ids=torch.tensor([ids]), pixel_values=self.pixels, image_grid_thw=self.grids,
                          mm_token_type_ids=kinds, use_cache=False).logits[0]

    def answer(self):
        ids, penalise = list(self.ids), RepetitionPenaltyLogitsProcessor(PENALTY)
        while len(ids) < len(self.ids) + ANSWER:
            scores = self.logits(ids)[-1:]
            scores[:, list(SEEN_TOKENS.values())] = -100  # no text: Volley's requests give them a bias
            best = penalise(torch.tensor([ids]), scores)[0].topk(2)
            assert best.values[0] - best.values[1] > 1e-4, "the choice is too close to compare"
            ids.append(int(best.indices[0]))
        return ids[len(self.ids):]

    def axes(self):
        kinds = torch.tensor([[int(i == SEEN_TOKENS["image_token_id"]) for i in self.ids]])
        positions, _ = self.model.model.get_rope_index(
            torch.tensor([self.ids]), mm_token_type_ids=kinds, image_grid_thw=self.grids)
        return positions[:, 0].T

    def vectors(self):
        out = self.model.model.get_image_features(self.pixels, self.grids, return_dict=True)
        deep = [part for kind in getattr(out, "deepstack_features", None) or [] for part in kind]
        return torch.cat([*out.pooler_output, *deep])


LETTERS = "\n " + string.ascii_letters + string.digits + ".,:;?!-_'\"()/{}"
SEEN_TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def write_letters(folder):
    """A tokenizer with a token a character, and a chat template that shows pictures."""
    specials = {0: "<|endoftext|>", 1: "<|im_end|>", 2: "<|im_start|>", 7: "<|image_pad|>", 8: "<|video_pad|>",
                9: "<|vision_start|>", 10: "<|vision_end|>"}
    vocab = {specials.get(i, f"<|{i}|>"): i for i in range(11)} | {letter: 11 + i for i, letter in enumerate(LETTERS)}
    marks = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": text, **marks, "special": True} for text, i in vocab.items() if i < 11],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}})
    (folder / "chat_template.jinja").write_text(SEEN_TEMPLATE)


@torch.no_grad()
def make_seen(name):
    """A tiny random model that sees, and what transformers makes of prompts with pictures of odd sizes: the tower's
    vectors, positions, logits and greedy answers."""
    index = list(SEEN).index(name)
    architecture, text, deep = SEEN[name]
    folder, generator = DATA / "seen" / name, torch.Generator().manual_seed(4000 + index)
    text = {key: value for key, value in text.items() if value is not None and key != "architectures"}
    vision = {**VISION, "out_hidden_size": text["hidden_size"], "deepstack_visual_indexes": deep}
    tensors = random_layers(text, generator)
    tensors["embed_tokens.weight"] = 0.5 * torch.randn(text["vocab_size"], text["hidden_size"], generator=generator)
    if "num_experts" in text:
        tensors = stack_experts(tensors, text["num_hidden_layers"], text["num_experts"])
    if name == "qwen3_vl_moe":  # whose files hold them transposed
        tensors = {n: t.transpose(1, 2) if ".experts." in n else t for n, t in tensors.items()}
    tensors = {f"model.language_model.{n}": t for n, t in tensors.items()}
    tensors |= {f"model.visual.{n}": t for n, t in random_tower(vision, generator).items()}
    if not text["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(
            text["vocab_size"], text["hidden_size"], generator=generator) * text["hidden_size"]**-0.5
    write_tensors(folder, {n: t.bfloat16() for n, t in tensors.items()})
    write_json(folder / "config.json", {
        "architectures": [architecture], "model_type": text["model_type"].removesuffix("_text"), "text_config": text,
        "vision_config": vision, **SEEN_TOKENS, "tie_word_embeddings": text["tie_word_embeddings"],
        "torch_dtype": "bfloat16"})
    side = vision["patch_size"] * vision["spatial_merge_size"]
    write_json(folder / "preprocessor_config.json", {
        "size": {"shortest_edge": side**2, "longest_edge": 64 * side**2}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    if name == "qwen3_vl":
        write_letters(folder)
    choose_delta_rule(chunked=False)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    expected = {}
    for i, parts in enumerate(TALKS):
        talk = Talk(model, vision, parts, 5000 + min(i, 3))
        places = [(begin, rgb.shape[1], rgb.shape[0]) for begin, rgb in talk.pictures]
        expected |= {f"{key}.{i}": torch.as_tensor(value).float().contiguous() for key, value in {
            "prompt_ids": talk.ids, "pictures": places, "rgb": torch.cat([rgb.flatten() for _, rgb in talk.pictures]),
            "vectors": talk.vectors(), "axes": talk.axes(), "logits": talk.logits(talk.ids),
            "greedy_ids": talk.answer()}.items()}
        expected[f"sizes.{i}"] = torch.tensor([float(len(talk.ids)), float(len(places))])
    write_tensors(folder / "expected", expected)


def read_target(name):
    """What a drafter is made from: the target's embeddings, and what it made of its prompt."""
    folder = DATA / "targets" / name
    weights = {}
    for path in folder.glob("*.safetensors"):
        weights |= load_file(path)
    expected = load_file(folder / "expected" / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"].float()
    return {"ids": expected["prompt_ids"].int().tolist(), "logits": expected["logits"], "layers": expected["layers"],
            "embeddings": embeddings, "head": weights.get("lm_head.weight", embeddings).float()}


def renamed(name, rules):
    for ours, theirs in rules.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def make_vocabulary(config, generator):
    """A part of the target's tokens, with a head of its own: its tensors as EAGLE and speculators store them. An offset
    is how far a token's id in the target's vocabulary lies above its own."""
    vocab, size, hidden = config["vocab_size"], config["draft_vocab_size"], config["hidden_size"]
    ids = torch.randperm(vocab, generator=generator)[:size].sort().values
    chosen = torch.zeros(vocab, dtype=torch.bool)
    chosen[ids] = True
    head = torch.randn(size, hidden, generator=generator) * hidden**-0.5
    return ids, head, {"d2t": ids - torch.arange(size), "t2d": chosen}


def make_drafter(index, name):
    target_name, config, dtype, prefix = DRAFTERS[name]
    target = read_target(target_name)
    absent = ("rope_theta", "num_target_layers")
    config = {key: value for key, value in config.items() if value is not None or key not in absent}
    generator = torch.Generator().manual_seed(2000 + index)
    folder = DATA / "drafters" / name
    layer_ids = dflash_reference.target_layers(config)
    hidden = config["hidden_size"]
    tensors = random_layers(config, generator)
    wide = len(layer_ids) * hidden
    tensors["fc.weight"] = torch.randn(hidden, wide, generator=generator) * wide**-0.5
    tensors["hidden_norm.weight"] = 1 + 0.3 * torch.randn(hidden, generator=generator)
    tensors = {prefix + n: t.to(DTYPES[dtype]) for n, t in tensors.items()}
    stored = {renamed(n, RENAMED.get(name, {})): t for n, t in tensors.items()}
    written, ids, head = config, None, target["head"]
    if "draft_vocab_size" in config:
        ids, head, maps = make_vocabulary(config, generator)
        stored |= {"lm_head.weight": head.to(DTYPES[dtype]), **maps}
        head = stored["lm_head.weight"]
    if name in IN_SPECULATORS_FORMAT:
        written = in_speculators_format(config)
        stored["embed_tokens.weight"] = target["embeddings"].to(DTYPES[dtype])
    write_tensors(folder, stored)
    write_json(folder / "config.json", {**written, "torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")})

    features = torch.cat([target["layers"][i] for i in layer_ids], dim=-1)
    block_size = config.get("block_size") or config["dflash_config"]["block_size"]
    expected = {"features": features}
    for context in CONTEXTS:
        last = target["ids"][context] if context < POSITIONS else int(target["logits"][-1].argmax())
        block = torch.tensor([last] + [config["dflash_config"]["mask_token_id"]] * (block_size - 1))
        hidden_states = dflash_reference.draft_hidden(config, tensors, features[:context], target["embeddings"][block])
        expected[f"block_ids.{context}"] = block.float()
        expected[f"hidden.{context}"] = hidden_states.float()
        if "draft_vocab_size" in config or "final_logit_softcapping" in config:
            expected[f"logits.{context}"] = dflash_reference.draft_logits(config, hidden_states, head, ids).float()
    write_tensors(folder / "expected", expected)
    (folder / "expected" / "target.txt").write_text(target_name + "\n")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*", help="KIND/NAME, e.g. targets/plain")
    options = parser.parse_args()
    jobs = {f"targets/{name}": lambda i=i, name=name: make_target(i, name) for i, name in enumerate(TARGETS)}
    jobs |= {f"drafters/{name}": lambda i=i, name=name: make_drafter(i, name) for i, name in enumerate(DRAFTERS)}
    jobs |= {f"rope/{name}": lambda name=name: make_rope(name) for name in ROPES}
    jobs |= {f"seen/{name}": lambda name=name: make_seen(name) for name in SEEN}
    jobs["pocket"] = make_pocket
    for name, job in jobs.items():
        if options.all or name in options.names or not (options.names or (DATA / name).exists()):
            shutil.rmtree(DATA / name, ignore_errors=True)
            job()
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{total / 1e6:.2f} MB under {DATA.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
