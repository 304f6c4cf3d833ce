"""Reads GGUF files: metadata, and tensors widened to fp32. Layout: the GGUF specification of ggml; blocks: ggml's Q types."""
from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import torch

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml's number of a type: its name, weights and bytes of a block.
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
          8: ("Q8_0", 32, 34), 14: ("Q6_K", 256, 210)}
# Names within a layer, as llama.cpp has them and as Hugging Face's checkpoints do.
_LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
          "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
          "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
          "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _half(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _widen(kind: str, raw: np.ndarray) -> np.ndarray:
    """Blocks [n, bytes] to weights [n, weights]."""
    if kind == "F32":
        return raw.view(np.float32)
    if kind == "F16":
        return _half(raw)
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind == "Q8_0":
        return raw[:, 2:].view(np.int8) * _half(raw[:, :2])
    if kind == "Q4_0":
        return (np.concatenate((raw[:, 2:] & 15, raw[:, 2:] >> 4), 1).astype(np.float32) - 8) * _half(raw[:, :2])
    if kind == "Q4_1":
        return np.concatenate((raw[:, 4:] & 15, raw[:, 4:] >> 4), 1) * _half(raw[:, :2]) + _half(raw[:, 2:4])
    low, high = raw[:, :128].reshape(-1, 2, 64), raw[:, 128:192].reshape(-1, 2, 32)  # Q6_K: halves of 128 weights
    bits = np.stack([low[:, :, :32] & 15, low[:, :, 32:] & 15, low[:, :, :32] >> 4, low[:, :, 32:] >> 4], 2)
    upper = np.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    q = (bits | upper << 4).astype(np.float32) - 32
    scales = raw[:, 192:208].view(np.int8).astype(np.float32).reshape(-1, 16, 1)
    return (q.reshape(-1, 16, 16) * scales * _half(raw[:, 208:])[:, :, None]).reshape(len(raw), 256)


class File:
    """`metadata` by key; `tensors` by the file's names."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._bytes[:4] != b"GGUF":
            raise ValueError(f"{path} is no GGUF file.")
        self._at = 4
        _, tensors, pairs = self._take("I"), self._take("Q"), self._take("Q")
        self.metadata: dict[str, Any] = {self._text(): self._value(self._take("I")) for _ in range(pairs)}
        self._entries = {}
        for _ in range(tensors):
            name = self._text()
            shape = [self._take("Q") for _ in range(self._take("I"))]
            kind, offset = self._take("I"), self._take("Q")
            if kind not in _TYPES:
                raise ValueError(f"{path}: {name} is of ggml's type {kind}, which is not built; built are "
                                 f"{', '.join(t[0] for t in _TYPES.values())}.")
            self._entries[name] = (shape[::-1], kind, offset)
        align = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // align) * align

    def _take(self, code: str) -> Any:
        value, = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _text(self) -> str:
        size = self._take("Q")
        self._at += size
        return self._bytes[self._at - size:self._at].decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._take("I"), self._take("Q")
            return [self._value(inner) for _ in range(count)]
        return self._take(_SCALARS[kind])

    def tensor(self, name: str) -> torch.Tensor:
        shape, kind, offset = self._entries[name]
        label, weights, size = _TYPES[kind]
        count = int(np.prod(shape)) // weights
        raw = np.frombuffer(self._bytes, np.uint8, count * size, self._data + offset).reshape(count, size)
        return torch.from_numpy(np.array(_widen(label, raw)).reshape(shape))

    def state(self) -> dict[str, torch.Tensor]:
        """All weights by the names of Hugging Face's checkpoints."""
        arch, out = self.metadata["general.architecture"], {}
        heads = self.metadata[f"{arch}.attention.head_count"]
        kv_heads = self.metadata.get(f"{arch}.attention.head_count_kv", heads)
        for name in self._entries:
            parts = name.split(".")
            if parts[0] == "blk" and parts[2] in _LAYER:
                value = self.tensor(name)
                if arch == "llama" and parts[2] in ("attn_q", "attn_k"):  # rows of a pair stand side by side there
                    n = heads if parts[2] == "attn_q" else kv_heads
                    value = value.unflatten(0, (n, -1, 2)).transpose(1, 2).flatten(0, 2)
                out[f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"] = value
            elif parts[0] in _WHOLE:
                out[f"{_WHOLE[parts[0]]}.{parts[1]}"] = self.tensor(name)
            elif name != "rope_freqs.weight":
                raise ValueError(f"{name} is a tensor that the plain forward pass does not know.")
        return out

    def config(self) -> dict[str, Any]:
        """config.json's fields of a dense decoder."""
        m, arch = self.metadata, self.metadata["general.architecture"]
        of = {key.removeprefix(arch + "."): value for key, value in m.items() if key.startswith(arch + ".")}
        heads, hidden = of["attention.head_count"], of["embedding_length"]
        scaling = next((value for key, value in of.items() if key in ("rope.scaling.type", "rope.scale_linear")
                        and value != "none"), "rope_freqs.weight" if "rope_freqs.weight" in self._entries else None)
        return {"model_type": arch, "hidden_size": hidden, "num_hidden_layers": of["block_count"],
                "num_attention_heads": heads, "num_key_value_heads": of.get("attention.head_count_kv", heads),
                "head_dim": of.get("attention.key_length", hidden // heads), "intermediate_size": of["feed_forward_length"],
                "vocab_size": len(m["tokenizer.ggml.tokens"]), "max_position_embeddings": of["context_length"],
                "rope_theta": of.get("rope.freq_base", 10000.0), "rope_scaling": scaling,
                "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
                "tie_word_embeddings": "output.weight" not in self._entries,
                "eos_token_id": m.get("tokenizer.ggml.eos_token_id"), "bos_token_id": m.get("tokenizer.ggml.bos_token_id")}
