"""Checks before the first step: each of these faults trains without error and serves badly."""
from __future__ import annotations

import torch
from torch import Tensor

from .blocks import Layout, Rows, draft, features_of, pick_anchors
from .networks import Drafter, Target

COSINE = 0.999


class GuardError(Exception):
    pass


def same_features(ours: Tensor, theirs: Tensor, names: list[int]) -> list[float]:
    """Features [T, layers * H] against a reference's. Fails by name of the layer below a cosine of 0.999."""
    width = ours.shape[-1] // len(names)
    found = []
    for i, name in enumerate(names):
        part = slice(i * width, (i + 1) * width)
        a, b = ours[..., part].double().flatten(), theirs[..., part].double().flatten()
        found.append(float(torch.nn.functional.cosine_similarity(a, b, 0)))
        if found[-1] < COSINE:
            raise GuardError(f"the features of layer {name} differ from the reference (cosine {found[-1]:.4f}): a layer's "
                             "number is off, or the two run different weights.")
    return found


def no_leak(drafter: Drafter, embedding: Tensor, rows: Rows, features: Tensor, layout: Layout, flex: bool) -> None:
    """Changes what a block must not see, and looks whether its rows change: features from the anchor on, and the tokens
    of all other blocks."""
    anchors, usable = pick_anchors(rows, layout.blocks)
    with torch.no_grad():
        def rows_of(at: Tensor, fed: Tensor) -> Tensor:
            return draft(drafter, embedding, rows, fed, at, usable, layout, flex).hidden

        plain = rows_of(anchors, features)
        chosen = int(usable[0].sum()) // 2
        mine, first = layout.block == chosen, int(anchors[0, chosen])
        later = features.clone()
        later[0, first:] += 1 + later[0, first:].abs()
        other = anchors.clone()  # the others' anchors move to the first place where one can be
        other[0, torch.arange(layout.blocks) != chosen] = int(rows.anchors[0].nonzero()[0])
        for what, hidden in (("features at or behind its anchor", rows_of(anchors, later)),
                             ("other blocks' tokens", rows_of(other, features))):
            if not torch.equal(hidden[0, mine], plain[0, mine]):
                raise GuardError(f"a block sees {what}.")
        earlier = features.clone()
        earlier[0, :first] += 1 + earlier[0, :first].abs()
        if torch.equal(rows_of(anchors, earlier)[0, mine], plain[0, mine]):
            raise GuardError("a block does not see the features before its anchor.")


def mask_token_unused(mask_token: int, rows: Rows, vocab: int) -> None:
    if not 0 <= mask_token < vocab:
        raise GuardError(f"the mask token {mask_token} is outside the vocabulary of {vocab}.")
    if bool(((rows.ids == mask_token) & (rows.documents >= 0)).any()):
        raise GuardError(f"the mask token {mask_token} occurs in the data: choose a token that never does.")


def same_template(answers: str, target: str) -> None:
    if answers != target:
        raise GuardError("the answers were made with another chat template than the target's: make them anew.")


def before_training(target: Target, drafter: Drafter, rows: Rows, layout: Layout, flex: bool) -> None:
    own = drafter.c["dflash_config"]
    mask_token_unused(own["mask_token_id"], rows, target.c["vocab_size"])
    few = rows[torch.arange(2, device=rows.ids.device)]
    with torch.no_grad():
        _, features = features_of(target, few, own["target_layer_ids"], flex)
        no_leak(drafter, target.model.embed_tokens.weight.float(), few, features.float(), layout, flex)
