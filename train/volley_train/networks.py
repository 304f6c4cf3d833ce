"""Plain PyTorch decoders with the parameter names of Hugging Face's checkpoints: a dense target (Llama's and Qwen3's
kind), and the DFlash drafter with the heads of DFlash 2 and DSpark.

Masks are boolean [B, 1, Q, K], true where a query may look, or block masks of flex_attention.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Config = dict[str, Any]
Rope = tuple[Tensor, Tensor]
Mask = Tensor | BlockMask | None  # None: causal


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


def rope_tables(positions: Tensor, c: Config) -> Rope:
    """cos and sin [B, 1, T, head_dim] of integer `positions` [B, T], rotate-half layout."""
    d = c["head_dim"]
    inverse = c["rope_theta"] ** -(torch.arange(0, d, 2, device=positions.device, dtype=torch.float32) / d)
    angles = (positions[:, None, :, None].float() * inverse).repeat(1, 1, 1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    a, b = x.chunk(2, -1)
    return (x * rope[0] + torch.cat((-b, a), -1) * rope[1]).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    if isinstance(mask, BlockMask):
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)  # type: ignore[return-value]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


class Attention(nn.Module):
    def __init__(self, c: Config, head_norms: bool) -> None:
        super().__init__()
        self.d, hidden = c["head_dim"], c["hidden_size"]
        self.h, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        bias = c.get("attention_bias", False)
        self.q_proj = nn.Linear(hidden, self.h * self.d, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv * self.d, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv * self.d, bias=bias)
        self.o_proj = nn.Linear(self.h * self.d, hidden, bias=False)
        norm = (lambda: RMSNorm(self.d, c["rms_norm_eps"])) if head_norms else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.h, self.d))).transpose(1, 2), rope)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv, self.d))).transpose(1, 2)
        return rotate(k, rope), self.v_proj(x).unflatten(-1, (self.kv, self.d)).transpose(1, 2)

    def output(self, x: Tensor) -> Tensor:
        return self.o_proj(x.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, head_norms: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(c, head_norms), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x: Tensor, rope: Rope, mask: Mask) -> Tensor:
        h = self.input_layernorm(x)
        k, v = self.self_attn.keys_values(h, rope)
        x = x + self.self_attn.output(attend(self.self_attn.queries(h, rope), k, v, mask))
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    def __init__(self, c: Config, head_norms: bool) -> None:
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c, head_norms) for _ in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.layer = lambda layer, *inputs: layer(*inputs)  # one function for all layers: compiled once

    def forward(self, ids: Tensor, positions: Tensor, mask: Mask, capture: list[int]) -> tuple[Tensor, Tensor]:
        """ids and positions [B, T]. Returns hidden states [B, T, H] after the final norm, and the outputs of the layers
        in `capture`, side by side."""
        rope, x, features = rope_tables(positions, self.c), self.model.embed_tokens(ids), []
        for i, layer in enumerate(self.model.layers):
            x = self.layer(layer, x, rope, mask)
            if i in capture:
                features.append(x)
        return self.model.norm(x), torch.cat(features, -1) if features else x[..., :0]


class BlockConv(nn.Module):
    """DFlash 2's convolution round a sublayer, along the rows of a block: a kernel of few taps for each channel, part
    of which a row makes for itself from what the sublayer's norm gives. Side 0 is of what the sublayer reads, side 1 of
    what it gives. A new one changes nothing."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        own, hidden = c["dflash_config"], c["hidden_size"]
        self.taps, self.group = own["conv_kernel_size"], own["conv_group_size"]
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden))
        nn.init.ones_(self.base_kernel[:, 0])
        self.kernel_projection = nn.Linear(hidden, 2 * self.taps * hidden // self.group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, h: Tensor) -> tuple[Tensor, ...]:
        """h [B, Q, H] to the kernels of both sides, each [B, Q, taps, H]."""
        own = self.kernel_projection(h).unflatten(-1, (2, self.taps, -1)).repeat_interleave(self.group, -1)
        return (self.base_kernel + own).unbind(2)

    def forward(self, x: Tensor, kernel: Tensor, depth: Tensor) -> Tensor:
        """x [B, Q, H]; depth [Q]: of each row, how many rows of its block stand before it."""
        out = kernel[:, :, 0] * x
        for tap in range(1, self.taps):
            earlier = F.pad(x[:, :-tap], (0, 0, tap, 0))
            out = out + kernel[:, :, tap] * earlier * (depth >= tap)[:, None]
        return out


class Selector(nn.Module):
    """DFlash 2's: what a token adds to its logit, by the token before it and the row's hidden state h."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        rank, vocab = c["dflash_config"]["selector_rank"], c["vocab_size"]
        self.hidden_projection = nn.Linear(c["hidden_size"], rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, rank) * rank ** -0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, rank))

    def forward(self, h: Tensor, before: Tensor) -> Tensor:
        return F.linear(self.predecessor_codebook[before] * self.hidden_projection(h), self.successor_codebook)


class MarkovHead(nn.Module):
    """DSpark's of the type vanilla: what a token adds to its logit, by the token before it alone."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        rank, vocab = c["dflash_config"]["markov_rank"], c["vocab_size"]
        self.markov_w1, self.markov_w2 = nn.Embedding(vocab, rank), nn.Linear(rank, vocab, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=rank ** -0.5)
        nn.init.zeros_(self.markov_w2.weight)

    def forward(self, h: Tensor, before: Tensor) -> Tensor:
        return self.markov_w2(self.markov_w1(before))


class ConfidenceHead(nn.Module):
    """DSpark's: the log-odds that a choice is accepted, from the row's hidden state and the Markov head's embedding of
    the token before."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.proj = nn.Linear(c["hidden_size"] + c["dflash_config"]["markov_rank"], 1)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        return self.proj(torch.cat((h, embedding), -1)).squeeze(-1)


class DraftLayer(Layer):
    def __init__(self, c: Config) -> None:
        super().__init__(c, head_norms=True)
        if "conv_kernel_size" in c["dflash_config"]:
            self.attention_conv, self.mlp_conv = BlockConv(c), BlockConv(c)


class Drafter(nn.Module):
    """A block of queries attends to injected target features and to itself. What the config's dflash_config names
    besides is DFlash 2's or DSpark's."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c, own, hidden = c, c["dflash_config"], c["hidden_size"]
        self.layers = nn.ModuleList(DraftLayer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(hidden, c["rms_norm_eps"])
        self.fc = nn.Linear(len(own["target_layer_ids"]) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.dim() > 1 and "_conv." not in name:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)
        if "selector_rank" in own:
            self.candidate_selector = Selector(c)
        if own.get("markov_rank"):
            self.markov_head, self.confidence_head = MarkovHead(c), ConfidenceHead(c)

    @property
    def first_proposal(self) -> int:
        """The first row of a block that proposes. DSpark's rows predict the token after their own."""
        return 0 if self.c["dflash_config"].get("markov_rank") else 1

    def forward(self, features: Tensor, feature_positions: Tensor, rows: Tensor, positions: Tensor, depth: Tensor,
                mask: Mask) -> Tensor:
        """features [B, C, F] at feature_positions [B, C]; rows: embeddings [B, Q, H] at positions [B, Q]; mask over
        C + Q keys; depth as in BlockConv. Returns hidden states [B, Q, H]."""
        context = self.hidden_norm(self.fc(features))
        rope, context_rope = rope_tables(positions, self.c), rope_tables(feature_positions, self.c)
        x = rows
        for layer in self.layers:
            def attention(h: Tensor) -> Tensor:
                old = layer.self_attn.keys_values(context, context_rope)
                new = layer.self_attn.keys_values(h, rope)
                k, v = (torch.cat(pair, 2) for pair in zip(old, new))
                return layer.self_attn.output(attend(layer.self_attn.queries(h, rope), k, v, mask))

            for norm, sublayer, side in ((layer.input_layernorm, attention, "attention_conv"),
                                         (layer.post_attention_layernorm, layer.mlp, "mlp_conv")):
                h, conv = norm(x), getattr(layer, side, None)
                if conv is None:
                    x = x + sublayer(h)
                else:
                    before, after = conv.kernels(h)
                    x = x + conv(sublayer(conv(h, before, depth)), after, depth)
        return self.norm(x)
