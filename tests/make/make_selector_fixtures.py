"""Writes drafters of tests/data/drafters whose heads choose from left to right (DFlash 2's selector, DSpark's Markov heads):
network and walk once and slowly, from docs/dflash.md, in float64. Needs numpy; run it from anywhere, with the names of
drafters to write, or all. What it takes of the targets (prompts, layers, embeddings) is there already.
"""
from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data"
CONTEXTS = (1, 9, 40)

Tensors = dict[str, np.ndarray]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Its bits, rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def of_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_tensors(path: Path) -> Tensors:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin : 8 + size + end]
        values = np.frombuffer(raw, np.float32) if entry["dtype"] == "F32" else of_bf16(np.frombuffer(raw, np.uint16))
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_tensors(folder: Path, tensors: Tensors):
    """uint16 is bf16; int64 is itself; bool too."""
    folder.mkdir(parents=True, exist_ok=True)
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in sorted(tensors.items()):
        raw = np.ascontiguousarray(tensor).tobytes()
        dtype = {"uint16": "BF16", "int64": "I64", "bool": "BOOL"}.get(str(tensor.dtype), "F32")
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_json(path: Path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, positions, theta, part=1.0):
    """x: [rows, heads, head_dim]; angles in float32, as transformers computes them. part: of a head's pairs that turn."""
    dim = x.shape[-1]
    frequencies = (1 / np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))).astype(np.float32)
    frequencies[int(part * dim / 2) :] = 0
    angle = np.asarray(positions, np.float32)[:, None] * frequencies
    cos, sin = (np.tile(f(angle), 2).astype(np.float64)[:, None] for f in (np.cos, np.sin))
    first, second = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate((-second, first), -1) * sin


def convolve(x, base, coefficients):
    """x: [rows, H]; base: [taps, H]; coefficients: [rows, taps, H / group]."""
    taps, hidden = base.shape
    kernel = base + np.repeat(coefficients, hidden // coefficients.shape[-1], axis=-1)
    y = np.zeros_like(x)
    for row in range(len(x)):
        for o in range(min(taps, row + 1)):
            y[row] += kernel[row, o] * x[row - o]
    return y


def visible(config, layer, context, block):
    query, key = np.arange(context, context + block)[:, None], np.arange(context + block)[None]
    mask = np.ones((block, context + block), bool)
    if config["is_causal"]:
        mask &= key <= query
    if config["layer_types"][layer] == "sliding_attention":
        mask &= abs(query - key) < config["sliding_window"]
    return mask


def is_gemma(config):
    """Whether the layers are Gemma 4's: norms on both sides, a normed V, gelu, wide heads in full layers, a factor."""
    return "global_head_dim" in config


def head_shape(config, layer):
    """KV heads and the width of a head."""
    wide = is_gemma(config) and config["layer_types"][layer] == "full_attention"
    return (config["num_global_key_value_heads"], config["global_head_dim"]) if wide else (
        config["num_key_value_heads"], config["head_dim"])


def draft_hidden(config, w: Tensors, features, block, mistake=""):
    """Final hidden states [block, hidden]. block: embeddings of its tokens, scaled. mistake: one that others made."""
    own, eps, gemma = config["dflash_config"], config["rms_norm_eps"], is_gemma(config)
    heads = config["num_attention_heads"]
    x, context, rows = block, len(features), len(block)
    taps = own.get("conv_kernel_size", 0)
    known = rms_norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    for layer in range(config["num_hidden_layers"]):
        kv_heads, dim = head_shape(config, layer)
        wide = dim == config.get("global_head_dim")

        def p(name):
            return w[f"layers.{layer}.{name}"]

        def kernels(name, h):
            if mistake == "convolved coefficients":
                h = convolve(h, p(f"{name}.base_kernel")[0], np.zeros((rows, taps, 1)))
            return p(f"{name}.base_kernel"), (h @ p(f"{name}.kernel_projection.weight").T).reshape(rows, 2, taps, -1)

        def around(name, h):
            """What a sublayer reads instead of h, and what becomes of its output."""
            if gemma:
                after = {"attention_conv": "post_attention_layernorm", "mlp_conv": "post_feedforward_layernorm"}[name]
                return h, lambda a: rms_norm(a, p(f"{after}.weight"), eps)
            if taps == 0:
                return h, lambda a: a
            base, own_part = kernels(name, h)
            return convolve(h, base[0], own_part[:, 0]), lambda a: convolve(a, base[1], own_part[:, 1])

        h, end = around("attention_conv", rms_norm(x, p("input_layernorm.weight"), eps))
        source = np.concatenate((known, h))
        if mistake == "context before the block":
            source[context] += p("attention_conv.base_kernel")[0, 1] * known[-1]
        q = (h @ p("self_attn.q_proj.weight").T).reshape(-1, heads, dim)
        k = (source @ p("self_attn.k_proj.weight").T).reshape(-1, kv_heads, dim)
        v = k if wide else (source @ p("self_attn.v_proj.weight").T).reshape(-1, kv_heads, dim)
        v = rms_norm(v, 1, eps) if gemma else v
        positions, turns = np.arange(context + rows), (1e6, 0.25) if wide else (config["rope_theta"],)
        q = rotate(rms_norm(q, p("self_attn.q_norm.weight"), eps), positions[context:], *turns)
        k = rotate(rms_norm(k, p("self_attn.k_norm.weight"), eps), positions, *turns)
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * (1 if gemma else dim**-0.5)
        scores = np.where(visible(config, layer, context, rows), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        a = np.einsum("hqk,khd->qhd", shares, v).reshape(rows, -1) @ p("self_attn.o_proj.weight").T
        x = x + end(a)
        before = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
        h, end = around("mlp_conv", rms_norm(x, p(f"{before}.weight"), eps))
        gate, up = h @ p("mlp.gate_proj.weight").T, h @ p("mlp.up_proj.weight").T
        # gelu's form with tanh is gate * sigmoid(2 * …), too.
        slope = 2 * math.sqrt(2 / math.pi) * (1 + 0.044715 * gate**2) if gemma else 1
        x = x + end((gate * sigmoid(slope * gate) * up) @ p("mlp.down_proj.weight").T)
        x = x * p("layer_scalar") if gemma else x
    return rms_norm(x, w["norm.weight"], eps)


def draft_logits(config, hidden, head):
    own = config["dflash_config"]
    logits = own.get("output_multiplier", 1) * (hidden @ head.T)
    cap = own.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


class Selector:
    """DFlash 2's: what each candidate's codes are multiplied by."""

    tables = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")

    def __init__(self, config, w: Tensors, mistake=""):
        self.w, self.before = w, w[self.tables[0]]
        self.top_k = config["dflash_config"]["selector_top_k"]

    def query(self, h, last):
        return self.before[last] * (self.w["candidate_selector.hidden_projection.weight"] @ h)


class Markov:
    """DSpark's heads of the three types, and the head for the confidence. mistake: one that others made."""

    tables = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
    top_k = 16

    def __init__(self, config, w: Tensors, mistake=""):
        self.w, self.before, self.mistake = w, w[self.tables[0]], mistake
        self.state = np.zeros(self.before.shape[1])

    def joint(self, name, *parts):
        parts = parts[::-1] if self.mistake == "order of inputs" else parts
        return self.w[f"{name}.weight"] @ np.concatenate(parts) + self.w[f"{name}.bias"]

    def query(self, h, last):
        e = self.before[last]
        if "markov_head.gate_proj.weight" in self.w:
            return sigmoid(self.joint("markov_head.gate_proj", h, e)) * e
        if "markov_head.joint_proj.weight" in self.w:
            gate, new, out = np.split(self.joint("markov_head.joint_proj", self.state, e, h), 3)
            if self.mistake != "no state":
                self.state = sigmoid(gate) * self.state + (1 - sigmoid(gate)) * np.tanh(new)
            return np.tanh(out)
        return e

    def confidence(self, h, last):
        width = self.w["confidence_head.proj.weight"].shape[1]
        return sigmoid(self.joint("confidence_head.proj", h, self.before[last][: width - len(h)])[0])


def select(config, w: Tensors, hidden, logits, last, mistake=""):
    """The greedy walk over the proposing rows: tokens, confidence, by how much each choice was clear. logits: of the
    drafter's own vocabulary."""
    own, tokens, chances, margin = config["dflash_config"], [], [], math.inf
    head = (Selector if "selector_rank" in own else Markov)(config, w, mistake)
    first = 1 if isinstance(head, Selector) else 0
    ids = np.arange(logits.shape[1]) + w.get("d2t", 0)
    for h, row in zip(hidden[first:], logits[first:]):
        best = np.argsort(-row, kind="stable")
        candidates = best[: head.top_k]
        margin = min(margin, row[candidates[-1]] - row[best[len(candidates)]])
        if "confidence_head.proj.weight" in w:
            chances.append(head.confidence(h, last))
        scores = row[candidates] + w[head.tables[1]][candidates] @ head.query(h, last)
        chosen = int(ids[candidates[np.argmax(scores)]])
        first_score, second = np.sort(scores)[:-3:-1]
        margin = min(margin, first_score - second)
        tokens.append(chosen)
        last = last if mistake == "no feedback" else chosen
    return tokens, chances, margin


def drafter_config(target, heads, kv_heads, head_dim, ffn, types, own, **more):
    t = json.loads((DATA / "targets" / target / "config.json").read_text())
    t = t.get("text_config", t)
    return {"model_type": "qwen3", "hidden_size": t["hidden_size"],
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "intermediate_size": ffn, "vocab_size": t["vocab_size"], "num_hidden_layers": len(types),
            "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256, "rope_theta": 10000.0, "layer_types": types, "sliding_window": 6,
            "use_sliding_window": True, "num_target_layers": t["num_hidden_layers"], "dflash_config": own, **more}


def in_speculators_format(config):
    own, algorithm = config["dflash_config"], "dflash2" if "selector_rank" in config["dflash_config"] else "dspark"
    elsewhere = ("architectures", "dflash_config", "num_target_layers", "is_causal")
    first = {key: own[key] for key in ("block_size", "mask_token_id")}
    inner = ("target_layer_ids", "projector_type", "draft_vocab_size")
    return {"architectures": ["DFlash2Speculator" if algorithm == "dflash2" else "DSparkSpeculator"],
            "speculators_model_type": algorithm,
            "speculators_config": {"algorithm": algorithm, "verifier": {"architectures": []}},
            "aux_hidden_state_layer_ids": [i + 1 for i in own["target_layer_ids"]], **first,
            "draft_vocab_size": own.get("draft_vocab_size", config["vocab_size"]),
            **({"sample_from_anchor": True} if algorithm == "dspark" else {}),
            **{key: value for key, value in own.items() if key not in inner},
            "transformer_layer_config": {k: v for k, v in config.items() if k not in elsewhere}}


def flat(config):
    return {"architectures": ["Qwen3DSparkModel"], "num_anchors": 512,
            **{k: v for k, v in config.items() if k not in ("architectures", "dflash_config")},
            **{k: v for k, v in config["dflash_config"].items() if k != "projector_type"}}


def gemma(config):
    """DeepSpec's for Gemma 4: its target's fields in Gemma's words."""
    others = ("hidden_act", "rope_theta", "use_sliding_window")
    return {**{k: v for k, v in flat(config).items() if k not in others}, "architectures": ["Gemma4DSparkModel"],
            "model_type": "gemma4_unified_text", "hidden_activation": "gelu_pytorch_tanh", "attention_k_eq_v": True}


def as_it_is(config):
    return config


# name: (target, config, whether its weights are bf16, the schema of its files)
DRAFTERS = {
    "selector": ("plain", drafter_config(
        "plain", 2, 1, 32, 48, ["sliding_attention", "full_attention"],
        {"mask_token_id": 127, "target_layer_ids": [0, 1], "block_size": 8, "conv_kernel_size": 2,
         "conv_group_size": 16, "selector_rank": 12, "selector_top_k": 16}, is_causal=False), True, in_speculators_format),
    "selector_causal": ("granite_factors", drafter_config(
        "granite_factors", 4, 2, 16, 40, ["full_attention", "sliding_attention"],
        {"mask_token_id": 94, "target_layer_ids": [2, 0], "block_size": 12, "conv_kernel_size": 3, "conv_group_size": 8,
         "selector_rank": 5, "selector_top_k": 7, "output_multiplier": 0.7, "final_logit_softcapping": 2.5,
         "input_embedding_scale": 0.8}, is_causal=True), False, as_it_is),
    "markov_vanilla": ("llama_tied", drafter_config(
        "llama_tied", 4, 2, 16, 40, ["full_attention"],
        {"mask_token_id": 88, "target_layer_ids": [1], "block_size": 7, "markov_rank": 8, "markov_head_type": "vanilla",
         "enable_confidence_head": True, "confidence_head_with_markov": True}, is_causal=False), True, flat),
    "markov_gated": ("llama_bias", drafter_config(
        "llama_bias", 2, 2, 16, 32, ["full_attention"],
        {"mask_token_id": 66, "target_layer_ids": [1, 0], "block_size": 8, "projector_type": "dspark", "markov_rank": 6,
         "markov_head_type": "gated", "attention_mode": "gqa", "confidence_head_alpha": 1.0}, is_causal=False), False,
        as_it_is),
    "markov_rnn": ("odd_vocab_linear", drafter_config(
        "odd_vocab_linear", 4, 2, 16, 32, ["full_attention"],
        {"mask_token_id": 130, "target_layer_ids": [1], "block_size": 9, "draft_vocab_size": 45, "markov_rank": 5,
         "markov_head_type": "rnn", "enable_confidence_head": False, "confidence_head_with_markov": True},
        is_causal=False), True, in_speculators_format),
    "markov_gemma": ("gemma4_unified", drafter_config(
        "gemma4_unified", 4, 2, 16, 40, ["full_attention", "sliding_attention", "full_attention"],
        {"mask_token_id": 4, "target_layer_ids": [2, 0], "block_size": 6, "markov_rank": 6, "markov_head_type": "vanilla",
         "enable_confidence_head": True, "confidence_head_with_markov": False, "final_logit_softcapping": 4.0},
        is_causal=False, global_head_dim=32, num_global_key_value_heads=1), True, gemma),
}
ARCHITECTURES = {"selector": "DFlash2DraftModel", "markov": "DSparkDraftModel"}


def head_tensors(config, random, matrix) -> Tensors:
    own, hidden, vocab = config["dflash_config"], config["hidden_size"], config["vocab_size"]
    if rank := own.get("selector_rank"):
        return {"candidate_selector.hidden_projection.weight": matrix(rank, hidden),
                "candidate_selector.predecessor_codebook": random.standard_normal((vocab, rank)),
                "candidate_selector.successor_codebook": random.standard_normal((vocab, rank))}
    rank, known = own["markov_rank"], own.get("draft_vocab_size", vocab)
    tensors = {"markov_head.markov_w1.weight": random.standard_normal((vocab, rank)),
               "markov_head.markov_w2.weight": 4 * random.standard_normal((known, rank))}
    layers = {}
    if own["markov_head_type"] == "gated":
        layers["markov_head.gate_proj"] = (rank, hidden + rank)
    if own["markov_head_type"] == "rnn":
        layers["markov_head.joint_proj"] = (3 * rank, 2 * rank + hidden)
    if own.get("enable_confidence_head", "confidence_head_alpha" in own):
        layers["confidence_head.proj"] = (1, hidden + (rank if own.get("confidence_head_with_markov") else 0))
    for name, (outputs, inputs) in layers.items():
        tensors |= {f"{name}.weight": 2 * matrix(outputs, inputs), f"{name}.bias": random.standard_normal(outputs)}
    return tensors


def random_tensors(config, random) -> Tensors:
    own, hidden, ffn = config["dflash_config"], config["hidden_size"], config["intermediate_size"]
    taps, groups = own.get("conv_kernel_size", 0), hidden // own.get("conv_group_size", 1)
    wide = len(own["target_layer_ids"]) * hidden

    def matrix(rows, columns):
        return random.standard_normal((rows, columns)) * columns**-0.5

    def norm(n):
        return 1 + 0.3 * random.standard_normal(n)

    tensors = {"fc.weight": matrix(hidden, wide), "hidden_norm.weight": norm(hidden), "norm.weight": norm(hidden),
               **head_tensors(config, random, matrix)}
    if known := own.get("draft_vocab_size"):
        tensors["lm_head.weight"] = 3 * matrix(known, hidden)
    for layer in range(config["num_hidden_layers"]):
        kv_heads, dim = head_shape(config, layer)
        q, kv = config["num_attention_heads"] * dim, kv_heads * dim
        own_tensors = {"input_layernorm.weight": norm(hidden), "post_attention_layernorm.weight": norm(hidden),
                       "self_attn.q_proj.weight": matrix(q, hidden), "self_attn.k_proj.weight": matrix(kv, hidden),
                       "self_attn.v_proj.weight": matrix(kv, hidden), "self_attn.o_proj.weight": matrix(hidden, q),
                       "self_attn.q_norm.weight": norm(dim), "self_attn.k_norm.weight": norm(dim),
                       "mlp.gate_proj.weight": matrix(ffn, hidden), "mlp.up_proj.weight": matrix(ffn, hidden),
                       "mlp.down_proj.weight": matrix(hidden, ffn)}
        if is_gemma(config):
            own_tensors |= {f"{side}_feedforward_layernorm.weight": norm(hidden) for side in ("pre", "post")}
            own_tensors["layer_scalar"] = norm(1)
            own_tensors["self_attn.q_norm.weight"] *= dim**-0.5  # as training does where scores have no factor
            if dim == config["global_head_dim"]:
                del own_tensors["self_attn.v_proj.weight"]
        for conv in ("attention_conv", "mlp_conv") if taps else ():  # a row's own tap is near one, as training leaves it
            base = 0.3 * random.standard_normal((2, taps, hidden))
            base[:, 0] += 1
            own_tensors[f"{conv}.base_kernel"] = base
            own_tensors[f"{conv}.kernel_projection.weight"] = 0.3 * matrix(2 * taps * groups, hidden)
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in own_tensors.items()}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def more_blocks(seed, vocab, draft):
    """64 rows: a context, a known token and what is drafted after it, where no choice is close."""
    random, rows = np.random.default_rng(seed + 1000), []
    while len(rows) < 64:
        context, last = len(rows) % 40 + 1, int(random.integers(vocab))
        tokens, margin = draft(context, last)
        if margin > 1e-4:
            rows.append([context, last, *tokens])
    return np.array(rows)


def make_drafter(seed, name):
    target_name, config, halves, schema = DRAFTERS[name]
    config = {"architectures": [ARCHITECTURES[name.split("_")[0]]], **config}
    own, vocab = config["dflash_config"], config["vocab_size"]
    weights = read_tensors(DATA / "targets" / target_name / "model.safetensors")
    made = read_tensors(DATA / "targets" / target_name / "expected" / "model.safetensors")
    embeddings = next(t for n, t in weights.items() if n.endswith("embed_tokens.weight"))
    random = np.random.default_rng(seed)
    stored = random_tensors(config, random)
    if halves:
        stored = {n: to_bf16(t) for n, t in stored.items()}
    w = {n: (of_bf16(t) if halves else t).astype(np.float64) for n, t in stored.items()}
    head = w.get("lm_head.weight", weights.get("lm_head.weight", embeddings).astype(np.float64))
    if known := own.get("draft_vocab_size"):
        ids = np.sort(random.choice(vocab, known, replace=False))
        w["d2t"] = stored["d2t"] = ids - np.arange(known)
        stored["t2d"] = np.isin(np.arange(vocab), ids)
    folder = DATA / "drafters" / name
    shutil.rmtree(folder, ignore_errors=True)
    write_tensors(folder, stored)
    write_json(folder / "config.json", {**schema(config), "torch_dtype": "bfloat16" if halves else "float32"})

    features = np.concatenate([made["layers"][i] for i in own["target_layer_ids"]], -1)
    expected, ids = {"features": features}, made["prompt_ids"].astype(int)
    unseen = {"no feedback"} | {"gated": {"order of inputs"}, "rnn": {"order of inputs", "no state"}}.get(
        own.get("markov_head_type"), set())

    def block_of(context, last):
        block = np.array([last] + [own["mask_token_id"]] * (own["block_size"] - 1))
        scale = config["hidden_size"] ** 0.5 if is_gemma(config) else own.get("input_embedding_scale", 1)
        rows = scale * embeddings[block].astype(np.float64)
        hidden = draft_hidden(config, w, features[:context].astype(np.float64), rows)
        logits = draft_logits(config, hidden, head)
        return block, rows, hidden, logits, *select(config, w, hidden, logits, last)

    expected["blocks"] = more_blocks(seed, vocab, lambda *at: block_of(*at)[4:7:2])
    for context in CONTEXTS:
        last = int(ids[context]) if context < len(ids) else int(made["logits"][-1].argmax())
        block, rows, hidden, logits, tokens, chances, margin = block_of(context, last)
        highest = (logits.argmax(-1) + (w["d2t"][logits.argmax(-1)] if "d2t" in w else 0))[-len(tokens) :]
        moved = int((highest != tokens).sum())
        assert margin > 1e-4 and moved > 0, (name, context, margin, moved)
        print(name, context, moved, "of", len(tokens), "moved")
        for mistake in ("convolved coefficients", "context before the block") if "conv_kernel_size" in own else ():
            wrong = draft_hidden(config, w, features[:context].astype(np.float64), rows, mistake)
            assert np.linalg.norm(wrong - hidden) > 1e-3 * np.linalg.norm(hidden), (name, context, mistake)
        unseen = {m for m in unseen if select(config, w, hidden, logits, last, mistake=m)[0] == tokens}
        if "d2t" in w:
            logits, part = np.full((len(logits), vocab), -np.inf), logits
            logits[:, np.arange(known) + w["d2t"].astype(int)] = part
        expected |= {f"block_ids.{context}": block, f"hidden.{context}": hidden, f"logits.{context}": logits,
                     f"drafts.{context}": np.array(tokens)}
        if chances:
            expected[f"confidence.{context}"] = np.array(chances)
    assert not unseen, (name, unseen)
    write_tensors(folder / "expected", {n: t.astype(np.float32) for n, t in expected.items()})
    (folder / "expected" / "target.txt").write_text(target_name + "\n")


if __name__ == "__main__":
    for number, drafter in enumerate(DRAFTERS):
        if drafter in (sys.argv[1:] or DRAFTERS):
            make_drafter(3000 + number, drafter)
