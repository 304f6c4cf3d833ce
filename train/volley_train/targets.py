"""Loads a target: a folder of Hugging Face's layout or a GGUF file, its tokenizer and its chat template."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .gguf import File
from .networks import Target

_PLAIN = {"llama", "qwen2", "qwen3"}  # dense decoders that networks.Target computes
# Fields of config.json that the plain pass does not follow, and the values with which it need not.
_NEUTRAL = {"rope_scaling": (None,), "use_sliding_window": (False, None), "hidden_act": ("silu", None),
            "mlp_bias": (False, None), "rope_parameters": (None,)}
# GGUF's names of pre-tokenizers, and what stands before GPT-2's rule.
_PRE = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}


class Bundle:
    """A target's weights on a device, its config, tokenizer and chat template."""

    def __init__(self, path: str, device: str, dtype: torch.dtype) -> None:
        self.path, self.device = path, device
        if Path(path).is_file():
            file = File(path)
            self.config, state = file.config(), file.state()
            self.tokenizer, self.template = _gguf_tokenizer(file.metadata), file.metadata.get("tokenizer.chat_template", "")
        else:
            self.config = json.loads((Path(path) / "config.json").read_text())
            state = {}
            for part in sorted(Path(path).glob("*.safetensors")):
                state |= load_file(part)
            own = Path(path) / "tokenizer.json"
            self.tokenizer = Tokenizer.from_file(str(own)) if own.exists() else None
            settings = Path(path) / "tokenizer_config.json"
            self.template = json.loads(settings.read_text()).get("chat_template", "") if settings.exists() else ""
            if (own := Path(path) / "chat_template.jinja").exists():
                self.template = own.read_text()
        self._compiled: Any = None
        c = self.config
        if c["model_type"] not in _PLAIN:
            raise ValueError(f"{path}: the plain forward pass knows {', '.join(sorted(_PLAIN))}, not {c['model_type']}.")
        for key, values in _NEUTRAL.items():
            if c.get(key) not in values:
                raise ValueError(f"{path}: {key} is {c[key]!r}, which the plain forward pass does not follow.")
        c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
        if c["model_type"] == "qwen2":
            c["attention_bias"] = True
        with torch.device("meta"):
            self.model = Target(c, head_norms=c["model_type"] == "qwen3")
        if c["tie_word_embeddings"]:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict({k: v.to(device, dtype) for k, v in state.items()}, assign=True)
        if c["tie_word_embeddings"]:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight
        self.model.eval().requires_grad_(False)
        stop = c["eos_token_id"]
        self.stops: list[int] = stop if isinstance(stop, list) else [stop]

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt of a conversation, up to where the answer begins."""
        if self._compiled is None:
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # a model's template is not trusted
            self._compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[
                "jinja2.ext.loopcontrols"]).from_string(self.template)
        names = {key: self.tokenizer.id_to_token(self.config.get(f"{key}_id") or 0) for key in ("bos_token", "eos_token")}
        return self._compiled.render(messages=messages, add_generation_prompt=True, **names)

    def encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise ValueError(f"{self.path} has no tokenizer.json, and prompts are texts.")
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @property
    def template_hash(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()


def _gguf_tokenizer(m: dict[str, Any]) -> Tokenizer:
    if m.get("tokenizer.ggml.model") != "gpt2":
        raise ValueError(f"the file's tokenizer is {m.get('tokenizer.ggml.model')!r}; built is gpt2 (byte-level BPE).")
    if (pre := m.get("tokenizer.ggml.pre")) not in _PRE:
        raise ValueError(f"the file's pre-tokenizer is {pre!r}; built are {', '.join(_PRE)}: give the checkpoint's folder.")
    tokens, kinds = m["tokenizer.ggml.tokens"], m["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ", 1)) for line in m["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*_PRE[pre], pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer
