"""Writes the MTP heads of tests/data/mtp: one layer beside a target of tests/data/targets, once and slowly, from
docs/dflash.md, in float64. Needs numpy; run it from anywhere, with the names of targets, or for all. What it takes of
the targets is there already.
"""
from __future__ import annotations

import json
import shutil
import sys

import numpy as np

from make_selector_fixtures import DATA, more_blocks, of_bf16, read_tensors, rms_norm, to_bf16, write_json, write_tensors

CONTEXTS, TOKENS = (1, 9, 40), 5
MISTAKES = ("hidden state before the norm", "output before the norm fed back", "weights without one", "halves swapped",
            "a token late", "first position seen")
TARGETS = ("hybrid_tied", "hybrid_experts", "next_experts", "glm_norms", "latent_glm")


def rotate(x, positions, theta, dims):
    """x: [rows, heads, head_dim], of which the first `dims` turn; angles in float32, as transformers computes them."""
    frequencies = (1 / np.float32(theta) ** (np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims))).astype(np.float32)
    angle = np.asarray(positions, np.float32)[:, None] * frequencies
    cos, sin = (np.tile(f(angle), 2).astype(np.float64)[:, None] for f in (np.cos, np.sin))
    turned, rest = x[..., :dims], x[..., dims:]
    first, second = np.split(turned, 2, axis=-1)
    return np.concatenate((turned * cos + np.concatenate((-second, first), -1) * sin, rest), -1)


def is_glm(config):
    """Whether the head is the files' last layer, with DeepSeek-V3's experts and plain norms."""
    return config["model_type"] in ("glm4_moe", "glm4_moe_lite")


def widths(config):
    """Elements of a head's q and k that turn, those that do not, and of its v."""
    if "kv_lora_rank" in config:
        return config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["v_head_dim"]
    dim = config["head_dim"]
    turned = int(dim * config["partial_rotary_factor"])
    return turned, dim - turned, dim


def silu(x):
    return x / (1 + np.exp(-x))


def swiglu(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


class Head:
    def __init__(self, target, config, w):
        self.t, self.c, self.w = target, config, w
        self.k, self.v = [], []  # of positions 1 and on

    def norm(self, x, name, mistake=""):
        weight = self.w[name] if name in self.w else self.t[name]
        one = (mistake == "weights without one") == is_glm(self.c)  # GLM's weights are factors, and one more is wrong
        of_latent = name.endswith("_a_layernorm.weight")  # transformers gives these its default
        return rms_norm(x, weight + one, 1e-6 if of_latent else self.c["rms_norm_eps"])

    def ffn(self, h):
        def p(name):
            return self.w["mtp.layers.0.mlp." + name]

        if is_glm(self.c):
            return self.glm_ffn(h, p)
        if "num_experts" not in self.c:
            return swiglu(h, p("gate_proj.weight"), p("up_proj.weight"), p("down_proj.weight"))
        share = np.exp(h @ p("gate.weight").T)
        share /= share.sum(-1, keepdims=True)
        y = np.zeros_like(h)
        for row, of_row in enumerate(share):
            chosen = np.argsort(-of_row, kind="stable")[: self.c["num_experts_per_tok"]]
            for e in chosen:
                expert = [p(f"experts.{e}.{n}_proj.weight") for n in ("gate", "up", "down")]
                y[row] += of_row[e] / of_row[chosen].sum() * swiglu(h[row], *expert)
        shared = swiglu(h, *(p(f"shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")))
        return y + shared / (1 + np.exp(-(h @ p("shared_expert_gate.weight").T)))

    def glm_ffn(self, h, p):
        """Chosen by sigmoid and bias, weighted without the bias; the shared expert has no gate."""
        score = 1 / (1 + np.exp(-(h @ p("gate.weight").T)))
        y = swiglu(h, *(p(f"shared_experts.{n}_proj.weight") for n in ("gate", "up", "down")))
        for row, of_row in enumerate(score):
            chosen = np.argsort(-(of_row + p("gate.e_score_correction_bias")), kind="stable")[: self.c["num_experts_per_tok"]]
            for e in chosen:
                expert = [p(f"experts.{e}.{n}_proj.weight") for n in ("gate", "up", "down")]
                share = self.c["routed_scaling_factor"] * of_row[e] / of_row[chosen].sum()
                y[row] += share * swiglu(h[row], *expert)
        return y

    def latent(self, h, turn, mistake):
        """q, k and v of all heads of latent attention, expanded; what turns, of neighbours, stands first here."""
        def p(name):
            return self.w[f"mtp.layers.0.self_attn.{name}.weight"]

        turned, others, value = widths(self.c)
        heads, rank = self.c["num_attention_heads"], self.c["kv_lora_rank"]
        apart = np.concatenate((np.arange(0, turned, 2), np.arange(1, turned, 2)))
        q = self.norm(h @ p("q_a_proj").T, "mtp.layers.0.self_attn.q_a_layernorm.weight", mistake) @ p("q_b_proj").T
        q_others, q_turned = np.split(q.reshape(1, heads, -1), [others], axis=-1)
        latent, k_turned = np.split(h @ p("kv_a_proj_with_mqa").T, [rank], axis=-1)
        latent = self.norm(latent, "mtp.layers.0.self_attn.kv_a_layernorm.weight", mistake)
        k_others, v = np.split((latent @ p("kv_b_proj").T).reshape(1, heads, -1), [others], axis=-1)
        q_turned, k_turned = (rotate(t[..., apart], *turn) for t in (q_turned, np.repeat(k_turned[:, None], heads, axis=1)))
        return np.concatenate((q_turned, q_others), -1), np.concatenate((k_turned, k_others), -1), v

    def run(self, position, token, hidden, mistake=""):
        """Logits and the state that the next pass takes, of the pair (hidden, token) at `position`; keeps K and V."""
        c, heads, kv_heads = self.c, self.c["num_attention_heads"], self.c["num_key_value_heads"]
        turned, others, _ = widths(c)
        embedded = self.norm(self.t["embed"][token][None], "mtp.pre_fc_norm_embedding.weight", mistake)
        parts = [embedded, self.norm(hidden[None], "mtp.pre_fc_norm_hidden.weight", mistake)]
        x = np.concatenate(parts[::-1] if mistake == "halves swapped" else parts, -1) @ self.w["mtp.fc.weight"].T

        def p(name):
            return self.w["mtp.layers.0." + name]

        def project(which, count):
            y = h @ p(f"self_attn.{which}_proj.weight").T + self.w.get(f"mtp.layers.0.self_attn.{which}_proj.bias", 0)
            return y.reshape(1, count, -1)

        h, gate, turn = self.norm(x, "mtp.layers.0.input_layernorm.weight", mistake), None, ([position], c["rope_theta"], turned)
        if "kv_lora_rank" in c:
            q, k, v = self.latent(h, turn, mistake)
        else:
            q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
            q, gate = (q, None) if is_glm(c) else np.split(q, 2, axis=-1)
            q = rotate(self.norm(q, "mtp.layers.0.self_attn.q_norm.weight", mistake), *turn)
            k = rotate(self.norm(k, "mtp.layers.0.self_attn.k_norm.weight", mistake), *turn)
        self.k.append(k[0])
        self.v.append(v[0])
        keys, values = (np.repeat(np.stack(t), heads // kv_heads, axis=1) for t in (self.k, self.v))
        scores = np.einsum("hd,khd->hk", q[0], keys) * (turned + others) ** -0.5
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        a = np.einsum("hk,khd->hd", shares, values) / (1 if gate is None else 1 + np.exp(-gate[0]))
        x = x + a.reshape(1, -1) @ p("self_attn.o_proj.weight").T
        x = x + self.ffn(self.norm(x, "mtp.layers.0.post_attention_layernorm.weight", mistake))
        m = self.norm(x, "mtp.norm.weight", mistake)
        return (m @ self.t["head"].T)[0], (x if mistake == "output before the norm fed back" else m)[0]


def chain(target, config, w, layers, ids, last, mistake=""):
    """Logits of TOKENS passes after the known `ids` and the token `last`, and the tokens."""
    head, context = Head(target, config, w), len(ids)
    known = layers[:context]
    hidden = known if mistake == "hidden state before the norm" else head.norm(known, "norm")
    if mistake == "first position seen":
        head.run(0, ids[0], np.zeros_like(hidden[0]))
    for position in range(1, context):
        head.run(position, ids[position], hidden[max(0, position - 1 - (mistake == "a token late"))], mistake)
    token, h, rows, tokens = last, hidden[-1], [], []
    for j in range(TOKENS):
        logits, h = head.run(context + j, token, h, mistake)
        token = int(logits.argmax())
        rows.append(logits)
        tokens.append(token)
    return np.stack(rows), tokens


def random_tensors(config, random):
    hidden, heads, glm, latent = config["hidden_size"], config["num_attention_heads"], is_glm(config), "kv_lora_rank" in config
    turned, others, dim = widths(config)
    q, kv = heads * dim, config["num_key_value_heads"] * dim
    experts, shared = (config["n_routed_experts"], "shared_experts") if glm else (config.get("num_experts", 0), "shared_expert")

    def matrix(rows, columns):
        return random.standard_normal((rows, columns)) * columns**-0.5

    def norm(n):
        return glm + 0.3 * random.standard_normal(n)

    def network(folder, inner):
        return {f"{folder}gate_proj.weight": matrix(inner, hidden), f"{folder}up_proj.weight": matrix(inner, hidden),
                f"{folder}down_proj.weight": matrix(hidden, inner)}

    def low_rank():
        query, rank = config["q_lora_rank"], config["kv_lora_rank"]
        own = {"q_a_proj": matrix(query, hidden), "q_a_layernorm": norm(query), "q_b_proj": matrix(heads * (turned + others), query),
               "kv_a_proj_with_mqa": matrix(rank + turned, hidden), "kv_a_layernorm": norm(rank),
               "kv_b_proj": matrix(heads * (others + dim), rank), "o_proj": matrix(hidden, heads * dim)}
        return {f"self_attn.{name}.weight": tensor for name, tensor in own.items()}

    layer = {"input_layernorm.weight": norm(hidden), "post_attention_layernorm.weight": norm(hidden),
             **(low_rank() if latent else {
                 "self_attn.q_proj.weight": matrix(q if glm else 2 * q, hidden), "self_attn.k_proj.weight": matrix(kv, hidden),
                 "self_attn.v_proj.weight": matrix(kv, hidden), "self_attn.o_proj.weight": matrix(hidden, q),
                 "self_attn.q_norm.weight": norm(dim), "self_attn.k_norm.weight": norm(dim)})}
    if experts:
        for e in range(experts):
            layer |= network(f"mlp.experts.{e}.", config["moe_intermediate_size"])
        layer |= network(f"mlp.{shared}.", config["moe_intermediate_size" if glm else "shared_expert_intermediate_size"])
        layer |= {"mlp.gate.weight": matrix(experts, hidden)}
        layer |= {"mlp.gate.e_score_correction_bias": 0.3 * random.standard_normal(experts)} if glm else {
            "mlp.shared_expert_gate.weight": matrix(1, hidden)}
        for which, width in (("q", q), ("k", kv), ("v", kv)) if config.get("attention_bias") else ():
            layer[f"self_attn.{which}_proj.bias"] = random.standard_normal(width)
    else:
        layer |= network("mlp.", config["intermediate_size"])
    return {"mtp.fc.weight": matrix(hidden, 2 * hidden), "mtp.pre_fc_norm_embedding.weight": norm(hidden),
            "mtp.pre_fc_norm_hidden.weight": norm(hidden), "mtp.norm.weight": norm(hidden),
            **{f"mtp.layers.0.{name}": tensor for name, tensor in layer.items()}}


def stacked(tensors):
    """The experts of all as two tensors, as some files have them."""
    names = [n for n in tensors if ".experts." in n]
    rest = {n: t for n, t in tensors.items() if n not in names}
    count = len(names) // 3
    part = [[tensors[f"mtp.layers.0.mlp.experts.{e}.{n}_proj.weight"] for e in range(count)] for n in ("gate", "up", "down")]
    gate_up = np.stack([np.concatenate(pair) for pair in zip(part[0], part[1])])
    return rest | {"mtp.layers.0.mlp.experts.gate_up_proj": gate_up, "mtp.layers.0.mlp.experts.down_proj": np.stack(part[2])}


def as_layer(tensors, layer, embed, head):
    """The names of files whose head is one layer more, which has copies of the target's embedding and output head."""
    names = {"mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.", "mtp.pre_fc_norm_hidden.": "hnorm.",
             "mtp.norm.": "shared_head.norm.", "mtp.layers.0.": ""}
    stored = {"embed_tokens.weight": np.zeros_like(embed), "shared_head.head.weight": np.zeros_like(head)}
    for name, tensor in tensors.items():
        ours = next(n for n in names if name.startswith(n))
        stored[names[ours] + name.removeprefix(ours)] = tensor
    return {f"model.layers.{layer}.{name}": tensor for name, tensor in stored.items()}


def make_head(seed, name):
    folder = DATA / "targets" / name
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= read_tensors(file)
    prefix = "model.language_model." if "model.language_model.norm.weight" in weights else "model."
    embed = weights[prefix + "embed_tokens.weight"].astype(np.float64)
    target = {"embed": embed, "head": weights.get("lm_head.weight", embed).astype(np.float64),
              "norm": weights[prefix + "norm.weight"].astype(np.float64)}
    made = read_tensors(folder / "expected" / "model.safetensors")
    layers, prompt = made["layers"][-1].astype(np.float64), made["prompt_ids"].astype(int)
    stored = {n: to_bf16(t) for n, t in random_tensors(text, np.random.default_rng(seed)).items()}
    w = {n: of_bf16(t).astype(np.float64) for n, t in stored.items()}
    out = DATA / "mtp" / name
    shutil.rmtree(out, ignore_errors=True)
    if is_glm(text):
        stored = as_layer(stored, text["num_hidden_layers"], *(to_bf16(target[n]) for n in ("embed", "head")))
    write_tensors(out, stacked(stored) if name == "hybrid_experts" else stored)
    write_json(out / "config.json", config)
    expected, seen = {"features": layers, "prompt_ids": prompt}, set()

    def draft(context, last):
        logits, tokens = chain(target, text, w, layers, prompt[:context], last)
        two = np.sort(logits, -1)[:, -2:]
        return tokens, (two[:, 1] - two[:, 0]).min()

    expected["blocks"] = more_blocks(seed, len(embed), draft)
    for context in CONTEXTS:
        last = int(prompt[context]) if context < len(prompt) else int(made["logits"][-1].argmax())
        logits, tokens = chain(target, text, w, layers, prompt[:context], last)
        two = np.sort(logits, -1)[:, -2:]
        assert (two[:, 1] - two[:, 0]).min() > 1e-3, (name, context)
        for mistake in MISTAKES:
            wrong, others = chain(target, text, w, layers, prompt[:context], last, mistake)
            if np.linalg.norm(wrong - logits) > 1e-2 * np.linalg.norm(logits):
                seen.add(mistake)
            print(name, context, mistake, sum(a == b for a, b in zip(tokens, others)), "of", TOKENS, "equal")
        expected |= {f"last.{context}": np.array([last]), f"logits.{context}": logits, f"drafts.{context}": np.array(tokens)}
    assert seen == set(MISTAKES), set(MISTAKES) - seen
    write_tensors(out / "expected", {n: t.astype(np.float32) for n, t in expected.items()})


if __name__ == "__main__":
    for number, of_target in enumerate(TARGETS):
        if of_target in (sys.argv[1:] or TARGETS):
            make_head(4000 + number, of_target)
