"""Trains a drafter on packed answers: features and teacher distributions are computed anew in each step."""
from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from .blocks import Layout, Rows, draft, features_of, pick_anchors
from .losses import accepted, distillation, of_head, summed
from .networks import Config, Drafter, Target
from .stream import Stream


@dataclass
class Recipe:
    seconds: float = 0  # the length of training: the schedule follows the clock; 0: `steps` says it
    steps: int = 0
    batch: int = 32  # rows of a step
    draft_rows: int = 2048  # of each row
    short: int = 8  # block of the first part
    long: int = 16  # block of half of the draft rows of the second part
    turn: float = 0.6  # where the second part begins
    rate: float = 1.5e-3
    warmup: int = 150
    gamma: float = 4.0
    alpha: float = 0.5  # D-PACE's, which takes over from exp(-k / gamma) at `pace`
    pace: float = 0.33
    seed: int = 1
    chunk: int = 8192  # draft rows whose logits are computed at once
    checkpoint: float = 120  # seconds between checkpoints
    halt: float = 1  # the share of training at which it stops for now
    keep: float = 0  # GB of features that stay in memory for further epochs


def layouts(r: Recipe, device: str) -> tuple[Layout, Layout]:
    """Blocks of the first part, and of the second: a causal block is the head of a longer one, so short ones stay."""
    each = r.draft_rows // (r.long + 2 * r.short) if r.long > r.short else r.draft_rows // r.short
    mixed = ([r.long, r.short, r.short] if r.long > r.short else [r.short]) * each
    mixed += [r.short] * ((r.draft_rows - sum(mixed)) // r.short)
    if sum(mixed) != r.draft_rows or r.draft_rows % r.short:
        raise ValueError("draft_rows must be whole blocks, short ones and long ones.")
    return Layout.of([r.short] * (r.draft_rows // r.short), device), Layout.of(mixed, device)


class Trainer:
    def __init__(self, target: Target, drafter: Drafter, rows: Rows, recipe: Recipe, flex: bool,
                 log: Callable[[dict[str, Any]], None], stream: Stream | None = None) -> None:
        self.target, self.drafter, self.rows, self.recipe, self.flex, self.log = target, drafter, rows, recipe, flex, log
        self.device = rows.ids.device
        self.optimiser = torch.optim.AdamW(drafter.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.room = recipe.keep * 1e9
        self.stream, self.ahead = stream, deque[int]()
        self.step, self.spent = 0, 0.0
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.draws = torch.Generator().manual_seed(recipe.seed)
        torch.manual_seed(recipe.seed + self.rank)  # of the anchors
        self.order: list[int] = []

    def draw(self) -> int:
        """The next row. Each rank has rows of its own."""
        if not self.order:
            own = torch.arange(self.rank, len(self.rows.ids), self.ranks)
            self.order = own[torch.randperm(len(own), generator=self.draws)].tolist()
        return self.order.pop(0)

    def talks(self, i: int) -> list[Tensor]:
        """Where the conversations of a row stand."""
        documents = self.rows.documents[i]
        return [(documents == d).nonzero()[:, 0] for d in range(int(documents.max()) + 1)]

    def asked(self) -> Iterator[np.ndarray]:
        """Conversations in the order in which steps will need them, which a stream asks for ahead of them."""
        while True:
            self.ahead.append(self.draw())
            for where in self.talks(self.ahead[-1]):
                yield self.rows.ids[self.ahead[-1], where].cpu().numpy()

    def batch(self) -> list[int]:
        if self.stream is None:
            return [self.draw() for _ in range(self.recipe.batch)]
        while len(self.ahead) <= self.recipe.batch:
            time.sleep(0.001)
        return [self.ahead.popleft() for _ in range(self.recipe.batch)]

    def streamed(self, pick: list[int]) -> tuple[Tensor, Tensor]:
        width = self.target.c["hidden_size"]
        out = torch.zeros(len(pick), self.rows.ids.shape[1], width + self.drafter.fc.in_features, device=self.device)
        for row, i in zip(out, pick):
            for where in self.talks(i):
                row[where] = self.stream.take(self.rows.ids[i, where].cpu().numpy()).to(self.device, out.dtype)
        return self.target.model.norm(out[..., -width:].to(self.target.lm_head.weight.dtype)), out[..., :-width]

    def sum_gradients(self) -> None:
        found = [p.grad for p in self.drafter.parameters() if p.grad is not None]
        flat = summed(torch.cat([g.flatten() for g in found]))
        for g, part in zip(found, flat.split([g.numel() for g in found])):
            g.copy_(part.view_as(g))

    @torch.no_grad()
    def features(self, pick: list[int], rows: Rows) -> tuple[Tensor, Tensor]:
        if self.stream is not None:
            return self.streamed(pick)
        if all(i in self.kept for i in pick):
            return tuple(torch.stack(parts) for parts in zip(*(self.kept[i] for i in pick)))
        hidden, features = features_of(self.target, rows, self.drafter.c["dflash_config"]["target_layer_ids"], self.flex)
        for i, h, f in zip(pick, hidden.bfloat16(), features.bfloat16()):
            if i not in self.kept and (size := 2 * (h.numel() + f.numel())) <= self.room:
                self.kept[i], self.room = (h.clone(), f.clone()), self.room - size
        return hidden, features

    def progress(self) -> float:
        r = self.recipe
        done = torch.tensor(self.spent / r.seconds if r.seconds else self.step / r.steps, device=self.device)
        if self.ranks > 1:
            dist.broadcast(done, 0)  # one clock says it
        return float(done)

    def run(self, folder: Path) -> None:
        r = self.recipe
        short, mixed = layouts(r, str(self.device))
        if self.stream is not None:
            self.stream.feed(self.asked())
        head = self.target.lm_head.weight.bfloat16()
        begun, saved = time.time() - self.spent, time.time()
        marks = (1, 10, 50, 100)
        while (done := self.progress()) < r.halt:
            layout = short if done < r.turn else mixed
            rate = r.rate * min(1.0, (self.step + 1) / r.warmup) * 0.5 * (1 + math.cos(math.pi * done))
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            told = (n := self.step + 1) % 100 == 0 or n in marks or n % 5 == 0 and not r.seconds
            pick = self.batch()
            rows = self.rows[torch.tensor(pick, device=self.device)]
            anchors, usable = pick_anchors(rows, layout.blocks)
            with torch.autocast(self.device.type, torch.bfloat16):
                hidden, features = self.features(pick, rows)
                drafts = draft(self.drafter, self.target.model.embed_tokens.weight, rows, features, anchors, usable,
                               layout, self.flex)
            loss, info = distillation(drafts, hidden, head, layout, r.gamma, r.alpha if done >= r.pace else None,
                                      r.chunk, told)
            if len(self.drafter.c["dflash_config"]) > 2:
                with torch.autocast(self.device.type, torch.bfloat16):
                    loss = loss + of_head(self.drafter, drafts, hidden, head, layout, r.gamma, r.chunk)
            loss.backward()
            if self.ranks > 1:
                self.sum_gradients()
            norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            self.step += 1
            if told:
                taken = accepted(info["hits"], layout, self.drafter.first_proposal)
                full = drafts.live.float().sum() / usable.sum()
                self.log({"step": self.step, "seconds": round(time.time() - begun, 1),
                          "loss": round(summed(loss.detach().clone()).item(), 4),
                          "kl": round(info["kl"].item(), 4), "eal": round(1 + taken[usable].float().mean().item(), 3),
                          "proposals": round(full.item(), 2), "gradient": round(float(norm), 3), "rate": round(rate, 6)})
            self.spent = time.time() - begun
            if time.time() - saved > r.checkpoint:
                self.save(folder)
                saved = time.time()
        self.save(folder)

    def save(self, folder: Path) -> None:
        if self.rank > 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"drafter": self.drafter.state_dict(), "optimiser": self.optimiser.state_dict(), "step": self.step,
                    "spent": self.spent, "order": [*self.ahead, *self.order], "draws": self.draws.get_state(),
                    "seed": self.recipe.seed}, folder / "state.tmp")
        (folder / "state.tmp").rename(folder / "state.pt")

    def resume(self, folder: Path) -> bool:
        if not (folder / "state.pt").exists():
            return False
        state = torch.load(folder / "state.pt", map_location=self.device, weights_only=True)
        self.drafter.load_state_dict(state["drafter"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.spent = state["step"], state["spent"]
        if state["seed"] == self.recipe.seed and self.rank == 0:  # others go on in an order of their own
            self.order = state["order"]
            self.draws.set_state(state["draws"].cpu())
        return True


def draft_config(c: Config, layers: int, block: int, window: int | None, causal: bool, mask_token: int,
                 head: dict[str, Any], kind: str, ids: list[int] | None = None) -> Config:
    """config.json of a drafter of the target's width, as z-lab's checkpoints have it, which reads the target's layers `ids`."""
    n = c["num_hidden_layers"]
    if not ids:
        count = layers if n < 12 else 5
        ids = [n // 2] if count == 1 else [round(1 + i * (n - 4) / (count - 1)) for i in range(count)]
    if ids != sorted(set(ids)) or not 0 <= ids[0] <= ids[-1] < n:
        raise ValueError(f"the target has layers 0 to {n - 1}, and --features wants some in rising order, not {ids}.")
    keep = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
            "max_position_embeddings", "rope_theta", "rms_norm_eps")
    return {"architectures": [{"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}[kind]],
            "model_type": "qwen3", **{k: c[k] for k in keep}, "hidden_act": "silu", "attention_bias": False,
            "torch_dtype": "bfloat16", "tie_word_embeddings": False, "num_hidden_layers": layers,
            "layer_types": ["sliding_attention" if window else "full_attention"] * layers, "use_sliding_window": bool(window),
            "sliding_window": window, "is_causal": causal, "block_size": block, "num_target_layers": n,
            "dflash_config": {"mask_token_id": mask_token, "target_layer_ids": ids, **head}}


def as_speculators(c: Config) -> Config:
    """The same drafter's config.json in the speculators library's schema, which counts layers from the embedding."""
    own, kind = dict(c["dflash_config"]), c["architectures"][0].removesuffix("DraftModel").lower()
    windowed = "sliding_attention" in c["layer_types"]
    if c["is_causal"] and not windowed:
        raise ValueError("the speculators schema has no causal drafter without a window: give --window.")
    outer = ("architectures", "is_causal", "block_size", "num_target_layers", "dflash_config")
    same = {key: value for key, value in own.items() if key not in ("mask_token_id", "target_layer_ids", "projector_type")}
    return {"architectures": ["DFlashSpeculator"], "speculators_model_type": kind, **same, "block_size": c["block_size"],
            "mask_token_id": own["mask_token_id"], "aux_hidden_state_layer_ids": [i + 1 for i in own["target_layer_ids"]],
            "draft_vocab_size": c["vocab_size"], "sliding_window_non_causal": windowed and not c["is_causal"],
            "transformer_layer_config": {key: value for key, value in c.items() if key not in outer}}


def export(drafter: Drafter, folder: Path, schema: str = "z-lab") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in drafter.state_dict().items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(as_speculators(drafter.c) if schema == "speculators" else drafter.c, indent=2) + "\n")


def load_drafter(folder: Path, device: str) -> Drafter:
    c = json.loads((folder / "config.json").read_text())
    windowed = all(kind == "sliding_attention" for kind in c.get("layer_types", [""]))
    c.setdefault("is_causal", c["dflash_config"].get("causal", windowed))
    drafter = Drafter(c).to(device)
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter
