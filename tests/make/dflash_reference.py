"""The DFlash draft network, once and slowly: the oracle that the fixtures of tests/data are made with.

Written from the description of the method in docs/dflash.md, one sequence at a time, without a cache, in float64.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

Tensors = dict[str, torch.Tensor]


def default_target_layers(target_layers: int, draft_layers: int) -> list[int]:
    if draft_layers == 1:
        return [target_layers // 2]
    return [round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers)]


def target_layers(config: dict) -> list[int]:
    ids = config["dflash_config"].get("target_layer_ids")
    return ids or default_target_layers(config["num_target_layers"], config["num_hidden_layers"])


def layer_visibility(config: dict, layer: int) -> tuple[bool, int | None]:
    """Whether a layer is causal inside the block, and its window if it has one."""
    own = config["dflash_config"]
    types = config.get("layer_types")
    if not types:
        first = config.get("max_window_layers", 28) if config.get("use_sliding_window") else config["num_hidden_layers"]
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(config["num_hidden_layers"])]
    sliding = types[layer] == "sliding_attention"
    causal = config.get("is_causal")
    if causal is None:
        causal = own.get("causal")
    if causal is None:
        causal = sliding
    if own.get("use_swa") and "sliding_attention" not in types:
        sliding = True  # all layers, and causality stays that of full ones
    return causal, own.get("swa_window_size", config.get("sliding_window")) if sliding else None


def visibility_mask(context: int, block: int, causal: bool, window: int | None) -> torch.Tensor:
    """[block, context + block], true where the query of a row sees the key of a column."""
    query = torch.arange(context, context + block)[:, None]
    key = torch.arange(context + block)[None]
    visible = torch.ones(block, context + block, dtype=torch.bool)
    if causal:
        visible &= key <= query
    if window is not None:
        visible &= (query - key).abs() < window
    return visible


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotary_tables(config: dict, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim], as transformers computes them in float32."""
    rotary = Qwen3RotaryEmbedding(Qwen3Config(**config))
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(positions)[None])
    return cos[0].double(), sin[0].double()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [rows, heads, head_dim]; cos and sin: [rows, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]


def project(x: torch.Tensor, layer: Tensors, which: str) -> torch.Tensor:
    y = x @ layer[f"self_attn.{which}_proj.weight"].T
    bias = layer.get(f"self_attn.{which}_proj.bias")
    return y if bias is None else y + bias


@torch.no_grad()
def draft_hidden(config: dict, weights: Tensors, features: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Final hidden states [block, hidden] of a block that follows `features`.

    features: [context, n_features * hidden], of positions 0 to context - 1. block: [block, hidden], the target's
    embeddings of the last token and the mask tokens, at the positions that follow.
    """
    w = {name.removeprefix("model."): tensor.double() for name, tensor in weights.items()}
    eps, head_dim = config["rms_norm_eps"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    x, n_context, n_block = block.double(), features.shape[0], block.shape[0]
    context = rms_norm(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    cos, sin = rotary_tables(config, n_context + n_block)

    for layer in range(config["num_hidden_layers"]):
        p = {name.removeprefix(f"layers.{layer}."): t for name, t in w.items() if name.startswith(f"layers.{layer}.")}
        h = rms_norm(x, p["input_layernorm.weight"], eps)
        source = torch.cat((context, h))  # the context has no layer norm of its own
        q = project(h, p, "q").view(-1, heads, head_dim)
        k = project(source, p, "k").view(-1, kv_heads, head_dim)
        v = project(source, p, "v").view(-1, kv_heads, head_dim)
        q = rotate(rms_norm(q, p["self_attn.q_norm.weight"], eps), cos[n_context:], sin[n_context:])
        k = rotate(rms_norm(k, p["self_attn.k_norm.weight"], eps), cos, sin)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * head_dim**-0.5
        visible = visibility_mask(n_context, n_block, *layer_visibility(config, layer))
        weights_of_keys = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights_of_keys, v).flatten(1)
        x = x + project(attended, p, "o")
        h = rms_norm(x, p["post_attention_layernorm.weight"], eps)
        gate, up = h @ p["mlp.gate_proj.weight"].T, h @ p["mlp.up_proj.weight"].T
        x = x + (F.silu(gate) * up) @ p["mlp.down_proj.weight"].T
    return rms_norm(x, w["norm.weight"], eps)


def draft_logits(config: dict, hidden: torch.Tensor, head: torch.Tensor, target_ids: torch.Tensor | None) -> torch.Tensor:
    """Logits [block, vocab] of final hidden states: softcapped, and with -inf where a head of a part of the vocabulary
    has no row. target_ids: the tokens of the head's rows; None: all."""
    logits = hidden.double() @ head.double().T
    cap = config.get("final_logit_softcapping") or config["dflash_config"].get("final_logit_softcapping")
    if cap:
        logits = cap * torch.tanh(logits / cap)
    if target_ids is None:
        return logits
    whole = torch.full((len(logits), config["vocab_size"]), float("-inf"), dtype=torch.float64)
    whole[:, target_ids] = logits
    return whole
