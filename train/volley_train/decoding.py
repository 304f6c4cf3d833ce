"""The target answers prompts: many at once, each row at its own position, so that a row that has ended makes room for the
next prompt. Prompts are read token by token by the same step that decodes. On a GPU the step is one CUDA graph."""
from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .networks import Layer, Rope, Target, rope_tables

try:
    import triton
    import triton.language as tl

    @triton.jit
    def _attend_kernel(q, k, v, out, positions, scale, length, GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr):
        row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
        count = tl.load(positions + row) + 1
        lane, dim = tl.arange(0, 16), tl.arange(0, DIM)
        at = ((row * heads + head) * GROUP + lane[:, None]) * DIM + dim[None, :]
        query = tl.load(q + at, mask=lane[:, None] < GROUP, other=0.0)
        base = (row * heads + head).to(tl.int64) * length * DIM
        best = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, DIM], tl.float32)
        for first in range(0, count, TILE):
            key = first + tl.arange(0, TILE)
            inside = key < count
            where = base + key[:, None] * DIM + dim[None, :]
            keys = tl.load(k + where, mask=inside[:, None], other=0.0)
            values = tl.load(v + where, mask=inside[:, None], other=0.0)
            scores = tl.where(inside[None, :], tl.dot(query, tl.trans(keys)) * scale, -1e30)
            top = tl.maximum(best, tl.max(scores, 1))
            p = tl.exp(scores - top[:, None])
            keep = tl.exp(best - top)
            total = total * keep + tl.sum(p, 1)
            acc = acc * keep[:, None] + tl.dot(p.to(values.dtype), values)
            best = top
        tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=lane[:, None] < GROUP)
except ImportError:  # the kernel is for GPUs alone
    triton = None


def attend_cached(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """q [S, heads, D], caches [S, kv heads, L, D], of which row s sees the keys 0..positions[s]. Returns [S, heads, D]."""
    slots, heads, dim = q.shape
    if q.is_cuda:
        q, out = q.contiguous(), torch.empty_like(q)
        _attend_kernel[(slots, k.shape[1])](q, k, v, out, positions, dim ** -0.5, k.shape[2], heads // k.shape[1], dim, 64)
        return out
    return attend_masked(q, k, v, positions)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    mask = torch.arange(k.shape[2], device=q.device) <= positions[:, None, None, None]
    return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask, enable_gqa=True)[:, :, 0]


def _before(layer: Layer, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
    h = layer.input_layernorm(x)
    k, v = layer.self_attn.keys_values(h, rope)
    return layer.self_attn.queries(h, rope)[:, :, 0], k[:, :, 0], v[:, :, 0]


def _after(layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    x = x + layer.self_attn.o_proj(attended.flatten(1))[:, None]
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _choose(logits: Tensor, noise: Tensor, temperatures: Tensor) -> Tensor:
    """The Gumbel-max choice; noise is exponential. Temperature 0 is greedy."""
    sampled = temperatures > 0
    scores = logits.float() / torch.where(sampled, temperatures, 1.0)[:, None]
    return torch.where(sampled[:, None], scores - noise.log(), scores).argmax(-1)


@dataclass
class Prompt:
    ids: list[int]
    temperature: float = 0.0
    limit: int = 320  # tokens of the answer
    domain: str = ""
    source: int = 0  # the caller's


@dataclass
class Answer:
    prompt: Prompt
    ids: list[int]  # with the stop token, if it came
    looped: bool  # ended because it repeated itself


class Decoder:
    """Decodes `slots` rows of at most `length` tokens."""

    PERIOD, REPEATED = 32, 64  # a row that repeats a period of up to so many tokens for so many tokens has looped

    def __init__(self, target: Target, slots: int, length: int, stops: list[int], graph: bool) -> None:
        self.target, self.slots, self.length = target, slots, length
        weight = target.model.norm.weight
        device, c = weight.device, target.c
        shape = (c["num_hidden_layers"], 2, slots, c["num_key_value_heads"], length, c["head_dim"])
        self.cache = torch.zeros(shape, device=device, dtype=weight.dtype)
        self.ids = torch.zeros(slots, length, dtype=torch.long, device=device)
        self.position, self.prompt, self.end = (torch.zeros(slots, dtype=torch.int32, device=device) for _ in range(3))
        self.temperature = torch.zeros(slots, device=device)
        self.busy, self.looped = (torch.zeros(slots, dtype=torch.bool, device=device) for _ in range(2))
        self.stops = torch.tensor(stops, device=device)
        self.every = torch.arange(slots, device=device)
        self.before, self.after, self.choose = _before, _after, _choose
        if graph:
            self.before, self.after, self.choose = (torch.compile(f, dynamic=False) for f in (_before, _after, _choose))
        self.noise = torch.empty(slots, c["vocab_size"], device=device)
        self.graph = None
        if device.type == "cuda":
            self._check_kernel()
        if graph:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()

    def _check_kernel(self) -> None:
        few = min(self.slots, 64)
        k, v = (torch.randn_like(part[:few]) for part in self.cache[0])
        q = torch.randn(few, self.target.c["num_attention_heads"], k.shape[-1], device=k.device, dtype=k.dtype)
        at = torch.arange(few, device=k.device, dtype=torch.int32) * (self.length - 1) // few
        ours, theirs = attend_cached(q, k, v, at), attend_masked(q.float(), k.float(), v.float(), at)
        error = float((ours.float() - theirs).norm() / theirs.norm())
        if not error < 0.01:
            raise ValueError(f"the attention kernel differs from its reference by {error:.4f}.")

    @torch.no_grad()
    def _step(self) -> None:
        at = self.position.long()
        rope = rope_tables(at[:, None], self.target.c)
        x = self.target.model.embed_tokens(self.ids[self.every, at])[:, None]
        for i, layer in enumerate(self.target.model.layers):
            q, k, v = self.before(layer, x, rope)
            keys, values = self.cache[i]
            keys[self.every, :, at] = k
            values[self.every, :, at] = v
            x = self.after(layer, x, attend_cached(q, keys, values, self.position))
        logits = self.target.lm_head(self.target.model.norm(x[:, 0]))
        self.noise.exponential_()
        chosen = self.choose(logits, self.noise, self.temperature)
        following = (at + 1).clamp(max=self.length - 1)
        told = self.ids[self.every, following]
        inside = following < self.prompt  # the prompt says what comes next
        token = torch.where(inside, told, chosen)
        self.ids[self.every, following] = torch.where(self.busy, token, told)
        self.position += self.busy.int()
        ended = ~inside & ((token[:, None] == self.stops).any(-1) | (self.position + 1 >= self.end))
        self.busy &= ~ended

    @torch.no_grad()
    def _mark_loops(self) -> None:
        span = self.PERIOD + self.REPEATED
        window = self.position[:, None].long() - torch.arange(span - 1, -1, -1, device=self.ids.device)
        tail = self.ids.gather(1, window.clamp(min=0))
        last = tail[:, self.PERIOD:]
        same = torch.stack([(last == tail[:, self.PERIOD - p:span - p]).all(1) for p in range(1, self.PERIOD + 1)]).any(0)
        self.looped |= same & (self.position - self.prompt >= span) & self.busy
        self.busy &= ~self.looped

    def run(self, prompts: list[Prompt], deadline: float = float("inf")) -> Iterator[Answer]:
        """Answers in the order in which they end. Past `deadline` (time.time()) it stops where it is."""
        queue, in_slot = iter(prompts), [None] * self.slots
        idle = list(range(self.slots))
        while time.time() < deadline:
            fresh = [(slot, prompt) for slot, prompt in zip(idle, queue)]
            if fresh:
                self._fill(fresh)
                for slot, prompt in fresh:
                    in_slot[slot] = prompt
            if all(prompt is None for prompt in in_slot):
                return
            for _ in range(16):
                self.graph.replay() if self.graph else self._step()
            self._mark_loops()
            busy = self.busy.cpu().numpy()
            idle = np.flatnonzero(~busy).tolist()
            ready = [slot for slot in idle if in_slot[slot] is not None]
            if ready:
                index = torch.tensor(ready, device=self.ids.device)
                rows, ends, looped = self.ids[index].cpu().numpy(), self.position[index].cpu(), self.looped[index].cpu()
                for slot, row, end, loop in zip(ready, rows, ends.tolist(), looped.tolist()):
                    prompt, in_slot[slot] = in_slot[slot], None
                    yield Answer(prompt, row[len(prompt.ids):end + 1].tolist(), loop)

    def _fill(self, fresh: list[tuple[int, Prompt]]) -> None:
        device, width = self.ids.device, max(len(p.ids) for _, p in fresh)
        if width >= self.length:
            raise ValueError(f"a prompt has {width} tokens; rows hold {self.length}.")
        rows = torch.zeros(len(fresh), width, dtype=torch.long)
        for i, (_, p) in enumerate(fresh):
            rows[i, :len(p.ids)] = torch.tensor(p.ids)
        index = torch.tensor([slot for slot, _ in fresh], device=device)
        self.ids[index, :width] = rows.to(device)
        self.position[index], self.busy[index], self.looped[index] = 0, True, False
        self.prompt[index] = torch.tensor([len(p.ids) for _, p in fresh], dtype=torch.int32, device=device)
        ends = [min(len(p.ids) + p.limit, self.length) for _, p in fresh]
        self.end[index] = torch.tensor(ends, dtype=torch.int32, device=device)
        self.temperature[index] = torch.tensor([p.temperature for _, p in fresh], device=device)


def loop_start(ids: list[int], period: int = Decoder.PERIOD) -> int:
    """Where what repeats at the end of `ids` begins for the second time."""
    a, best = np.array(ids), len(ids)
    for p in range(1, min(period, len(a) - 1) + 1):
        differs = np.flatnonzero(a[p:] != a[:-p])
        best = min(best, (int(differs[-1]) + 1 if len(differs) else 0) + p)
    return best
