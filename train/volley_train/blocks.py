"""Blocks at anchors of packed rows: what a drafter reads, what it may see, and what is true."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from .networks import Config, Drafter, Mask, Target

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_create = create_block_mask


def use_compiled_masks() -> None:
    global _create
    _create = torch.compile(create_block_mask)


def make_mask(rule: MaskRule, rows: int, queries: int, keys: int, device: torch.device, flex: bool) -> Mask:
    """A rule (row, head, query, key) -> may look, as a block mask or as a boolean one."""
    if flex:
        return _create(rule, rows, None, queries, keys, device=device)
    ar = lambda n: torch.arange(n, device=device)  # noqa: E731
    return rule(ar(rows)[:, None, None], ar(1)[None, None], ar(queries)[:, None], ar(keys)[None])[:, None]


@dataclass
class Rows:
    """Packed conversations, each tensor [B, L]: token, position within its conversation, its conversation's number in
    the row, and its answer's number (0: of no answer)."""

    ids: Tensor
    positions: Tensor
    documents: Tensor
    answers: Tensor

    def __getitem__(self, pick: Tensor) -> Rows:
        return Rows(*(t[pick].long() for t in (self.ids, self.positions, self.documents, self.answers)))

    @property
    def anchors(self) -> Tensor:
        """Tokens of answers that another one follows."""
        out = torch.zeros_like(self.answers, dtype=torch.bool)
        out[:, :-1] = (self.answers[:, 1:] == self.answers[:, :-1]) & (self.answers[:, :-1] > 0)
        return out


@dataclass
class Layout:
    """The blocks of a row of Q draft rows: of each draft row its block, and how many rows of the block stand before."""

    block: Tensor  # [Q]
    depth: Tensor  # [Q]
    last: Tensor  # [Q]: the block's last draft row
    blocks: int

    @classmethod
    def of(cls, lengths: list[int], device: str) -> Layout:
        sizes = torch.tensor(lengths)
        ends = sizes.cumsum(0)
        block = torch.arange(len(lengths)).repeat_interleave(sizes)
        depth = torch.arange(int(ends[-1])) - (ends - sizes)[block]
        return cls(block.to(device), depth.to(device), (ends[block] - 1).to(device), len(lengths))


def features_of(target: Target, rows: Rows, layers: list[int], flex: bool) -> tuple[Tensor, Tensor]:
    """The target's final hidden states and features, each conversation by itself."""
    documents = rows.documents

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (documents[b, q] == documents[b, k]) & (q >= k)

    size = rows.ids.shape[1]
    return target(rows.ids, rows.positions, make_mask(rule, len(rows.ids), size, size, rows.ids.device, flex), layers)


@dataclass
class Drafts:
    """For each draft row: the hidden state [B, Q, H], the token that is right there and the one before, the place of the
    target's hidden state that chose it, and whether the row counts, each [B, Q]."""

    hidden: Tensor
    truth: Tensor
    before: Tensor
    chose: Tensor
    live: Tensor


def block_rule(rows: Rows, anchors: Tensor, layout: Layout, c: Config, size: int) -> MaskRule:
    """A draft row sees its conversation strictly before the anchor, and its block: all of it, or what stands before
    where the drafter is causal; within the window, if there is one."""
    documents, positions = rows.documents, rows.positions
    block, depth, causal, window = layout.block, layout.depth, c["is_causal"], c.get("sliding_window") or 1 << 30

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        anchor = anchors[b, block[q]]
        past = k.clamp(max=size - 1)
        own = (k - size).clamp(min=0)
        near = positions[b, anchor] + depth[q] - positions[b, past] < window
        context = (k < anchor) & (documents[b, past] == documents[b, anchor]) & near
        inside = (block[own] == block[q]) & ((depth[own] <= depth[q]) if causal else True)
        return torch.where(k < size, context, inside)

    return rule


def draft(drafter: Drafter, embedding: Tensor, rows: Rows, features: Tensor, anchors: Tensor, usable: Tensor,
          layout: Layout, flex: bool) -> Drafts:
    """Blocks at anchors [B, A], of which `usable` ones count. embedding: the target's [V, H]."""
    c, size = drafter.c, rows.ids.shape[1]
    at = anchors[:, layout.block]
    tokens = torch.where(layout.depth == 0, rows.ids.gather(1, at), c["dflash_config"]["mask_token_id"])
    ahead = 1 - drafter.first_proposal
    place = at + layout.depth + ahead
    inside = place < size
    place = place.clamp(max=size - 1)
    live = inside & usable[:, layout.block] & (rows.answers.gather(1, place) == rows.answers.gather(1, at))
    live &= layout.depth >= drafter.first_proposal
    mask = make_mask(block_rule(rows, anchors, layout, c, size), len(at), at.shape[1], size + at.shape[1], at.device, flex)
    hidden = drafter(features, rows.positions, embedding[tokens], rows.positions.gather(1, at) + layout.depth,
                     layout.depth, mask)
    return Drafts(hidden, rows.ids.gather(1, place), rows.ids.gather(1, (place - 1).clamp(min=0)),
                  (place - 1).clamp(min=0), live)


def pick_anchors(rows: Rows, count: int) -> tuple[Tensor, Tensor]:
    """`count` anchors of each row, drawn at random and sorted, and which of them are some."""
    keys = torch.rand(rows.ids.shape, device=rows.ids.device).masked_fill(~rows.anchors, -1)
    best = keys.topk(count, 1)
    where, order = best.indices.sort(1)
    return where, best.values.gather(1, order) >= 0
