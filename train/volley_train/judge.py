"""Expected acceptance of a drafter, teacher-forced: walks through the target's own answers as verification does."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .blocks import Layout, Rows, draft, features_of
from .data import Answers, pack
from .networks import Drafter, Target


def noise_of_choice(logits: Tensor, chosen: Tensor) -> Tensor:
    """Gumbel noise g with argmax(logits + g) = chosen, drawn from its distribution given that."""
    likely = logits.log_softmax(-1)
    gumbel = -torch.empty_like(logits).exponential_().log()
    top = -torch.empty_like(logits[..., :1]).exponential_().log()
    rest = -torch.logaddexp(-top, -(likely + gumbel))
    return torch.where(torch.arange(logits.shape[-1], device=logits.device) == chosen[..., None], top, rest) - likely


BEYOND = 1 << 30  # the rank of a proposal behind the answer's end


def walk(ranks: np.ndarray, block: int, leaves: int = 0) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens that each verification step commits, and of steps that end in a miss the ranks of the true tokens there and
    at the next proposal. ranks [anchors, proposals]: the true token's among the drafter's scores, 0 where it is proposed.
    leaves: so many of the next best tokens are verified beside each proposal, nothing below them."""
    ranks = np.pad(ranks[:, :block - 1], ((0, 0), (0, 2)), constant_values=BEYOND)
    taken, misses, at = [], [], 0
    right = (ranks == 0).cumprod(1).sum(1)
    while at < len(ranks):
        missed, behind = (int(rank) for rank in ranks[at, right[at]:][:2])
        if missed < BEYOND:
            misses.append((missed, behind))
        taken.append(min(int(right[at]) + 1 + (missed <= leaves), len(ranks) - at))
        at += taken[-1]
    return taken, misses


@torch.no_grad()
def ranks_of(target: Target, drafter: Drafter, rows: Rows, temperatures: Tensor, layout: Layout, flex: bool) -> list[np.ndarray]:
    """For each row (one conversation) and each anchor, the rank of what the target chose at each proposal, given the true
    token before: 0 where the drafter proposes it. temperatures [B]."""
    own = drafter.c["dflash_config"]
    device, most = rows.ids.device, layout.blocks
    with torch.autocast(device.type, torch.bfloat16):
        hidden, features = features_of(target, rows, own["target_layer_ids"], flex)
    out: list[list[np.ndarray]] = [[] for _ in rows.ids]
    anchors = rows.anchors
    first = drafter.first_proposal
    counts = anchors.sum(1).tolist()
    listed = [anchors[i].nonzero()[:, 0] for i in range(len(counts))]
    for begin in range(0, max(counts, default=0), most):
        at = torch.zeros(len(counts), most, dtype=torch.long, device=device)
        usable = torch.zeros_like(at, dtype=torch.bool)
        for i, where in enumerate(listed):
            part = where[begin:begin + most]
            at[i, :len(part)], usable[i, :len(part)] = part, True
        with torch.autocast(device.type, torch.bfloat16):
            drafts = draft(drafter, target.model.embed_tokens.weight, rows, features, at, usable, layout, flex)
        live = drafts.live.flatten().nonzero()[:, 0]
        row = torch.arange(len(counts), device=device)[:, None]
        chose = (drafts.chose + row * rows.ids.shape[1]).flatten()
        hot = temperatures[:, None].expand(drafts.live.shape).flatten()
        found = torch.full((drafts.live.numel(),), BEYOND, device=device)
        head = target.lm_head
        for part in live.split(2048):
            h = drafts.hidden.flatten(0, 1)[part].to(head.weight.dtype)
            truth = drafts.truth.flatten()[part]
            scores, before = head(h).float(), drafts.before.flatten()[part]
            t = hot[part][:, None]
            warm = torch.where(t > 0, t, 1.0)
            noise = noise_of_choice(head(hidden.flatten(0, 1)[chose[part]].to(head.weight.dtype)).float() / warm, truth)
            if own.get("selector_rank"):
                best = scores.topk(own["selector_top_k"], -1).indices
                kept = torch.full_like(scores, -torch.inf).scatter(-1, best, 0.0)
                scores = scores + drafter.candidate_selector(h.float(), before) + kept
            elif own.get("markov_rank"):
                scores = scores + drafter.markov_head(h.float(), before)
            scores = torch.where(t > 0, scores / warm + noise, scores)
            above = (scores > scores.gather(-1, truth[:, None])).sum(-1)
            found[part] = torch.where(scores.argmax(-1) == truth, 0, above.clamp(min=1))
        grid = found.view(len(counts), most, -1)[:, :, first:].cpu().numpy()
        for i, count in enumerate(counts):
            if count > begin:
                out[i].append(grid[i, :min(most, count - begin)])
    return [np.concatenate(parts) if parts else np.zeros((0, 1), np.int64) for parts in out]


def leaves(ranks: list[np.ndarray], block: int) -> dict[str, Any]:
    """The gain that a tree could bring: the shares of ranks at first misses, how often the proposal behind one is right, and
    tokens a step where the first, or the first two, other tokens are verified beside each proposal."""
    walks = [[walk(r, block, n) for r in ranks] for n in (0, 1, 2)]
    misses = [miss for _, found in walks[0] for miss in found]
    mean = [np.mean([n for taken, _ in each for n in taken]) for each in walks]
    if not misses:
        return {}
    of, behind = np.array(misses).T
    bounds = {"1": (1, 2), "2": (2, 3), "3 to 15": (3, 16), "more": (16, BEYOND)}
    return {"first misses": len(of), "rank": {k: round(float(((of >= a) & (of < b)).mean()), 3) for k, (a, b) in bounds.items()},
            "next right": round(float((behind == 0).sum() / max(1, (behind < BEYOND).sum())), 3),
            "tokens a step with 0, 1, 2 leaves": [round(float(m), 3) for m in mean]}


def judge(target: Target, drafter: Drafter, answers: Answers, which: list[int], length: int, batch: int, draft_rows: int,
          blocks: list[int], flex: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tokens a step by domain and block length, of conversations `which`; T > 0 coupled by the target's noise. Answers
    that looped are a domain of their own. Then what leaves() says of the longest blocks, by temperature."""
    device = target.lm_head.weight.device
    layout = Layout.of([drafter.c["block_size"]] * (draft_rows // drafter.c["block_size"]), str(device))
    taken: dict[tuple[str, int], list[int]] = defaultdict(list)
    ranks: dict[str, list[np.ndarray]] = defaultdict(list)
    for begin in range(0, len(which), batch):
        part = which[begin:begin + batch]
        packed = [pack([answers.conversation(i)], length) for i in part]
        packed += [packed[-1]] * (batch - len(part))
        rows = Rows(*(torch.cat([getattr(p, n) for p in packed]).to(device).long()
                      for n in ("ids", "positions", "documents", "answers")))
        t = [float(answers.temperature[i]) for i in part] + [0.0] * (batch - len(part))
        for i, found in zip(part, ranks_of(target, drafter, rows, torch.tensor(t, device=device), layout, flex)):
            ranks[f"T={answers.temperature[i]:.1f}"].append(found)
            name = answers.domains[answers.domain[i]] + (" (looping)" if answers.looped[i] else "")
            name += f" T={answers.temperature[i]:.1f}"
            for block in blocks:
                taken[name, block] += walk(found, block + 1 - drafter.first_proposal)[0]
    result: dict[str, Any] = defaultdict(dict)
    for (name, block), steps in sorted(taken.items()):
        if steps:
            result[name][str(block)] = round(sum(steps) / len(steps), 3)
    return dict(result), {t: leaves(ranks[t], blocks[-1] + 1 - drafter.first_proposal) for t in sorted(ranks)}
